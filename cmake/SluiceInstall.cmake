# Installs the programs, and what find_package(sluice) finds (docs/library.md): the pure side as
# sluice::sluice and, where it was built, the machine side as sluice::engine. Each side is an export set of
# its layers, and a folder of headers for each layer.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

# sluice_install_side(NAME UMBRELLA LAYERS folder... TARGETS target...): the umbrella becomes sluice::NAME.
function(sluice_install_side name umbrella)
  cmake_parse_arguments(PARSE_ARGV 2 side "" "" "LAYERS;TARGETS")
  foreach(target ${side_TARGETS})
    string(REGEX REPLACE "^sluice_" "" short ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${short})
  endforeach()
  set_target_properties(${umbrella} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${umbrella} ${side_TARGETS} EXPORT ${name} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${name} NAMESPACE sluice:: DESTINATION ${package} FILE ${name}-targets.cmake)
  list(TRANSFORM side_LAYERS PREPEND src/)
  install(DIRECTORY ${side_LAYERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice
    FILES_MATCHING PATTERN "*.h" PATTERN page EXCLUDE)
endfunction()

set(layers base schedule cost trace config run sim plan report)
list(TRANSFORM layers PREPEND sluice_ OUTPUT_VARIABLE targets)
sluice_install_side(sluice sluice_pure LAYERS ${layers} TARGETS sluice_options ${targets})
install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

set(torch_version "")
if(TARGET sluice_machine)
  sluice_install_side(engine sluice_machine
    LAYERS comm cuda model data optim runtime
    TARGETS sluice_torch_fmt sluice_comm sluice_comm_mpi sluice_comm_nccl sluice_comm_tensors sluice_cuda
      sluice_model sluice_data sluice_optim sluice_runtime_files sluice_saved sluice_weights sluice_preflight
      sluice_runtime)
  # Torch, and MPI perhaps, are not where the system looks.
  set_target_properties(sluice_engine PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS sluice_engine RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES cmake/FindSluiceTorch.cmake cmake/SluiceCuda.cmake DESTINATION ${package})
  get_directory_property(with_mpi DIRECTORY src/comm DEFINITION MPI_CXX_FOUND)
  set(with_nccl FALSE)
  if(TARGET sluice_nccl)
    set(with_nccl TRUE)
  endif()
  if(SluiceTorch_VERSION)
    set(torch_version "${SluiceTorch_VERSION} EXACT")
  endif()
endif()

configure_package_config_file(cmake/sluice-config.cmake.in
  ${PROJECT_BINARY_DIR}/sluice-config.cmake INSTALL_DESTINATION ${package})
# While the version is 0.x, a program needs the minor version that it was written for.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluice-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sluice-config.cmake ${PROJECT_BINARY_DIR}/sluice-config-version.cmake
  DESTINATION ${package})
