# Finds libtorch in a Python package folder (SLUICE_TORCH_DIR holds `torch/`, and `nvidia/` where the
# wheel was built for CUDA), and defines the target sluice_torch. The wheel's own CMake package insists on a CUDA toolkit; on
# the CPU nothing of CUDA but its runtime library is needed.
find_path(SLUICE_TORCH_INCLUDE ATen/ATen.h PATHS ${SLUICE_TORCH_DIR}/torch/include NO_DEFAULT_PATH NO_CACHE)
find_library(SLUICE_TORCH_CPU torch_cpu PATHS ${SLUICE_TORCH_DIR}/torch/lib NO_DEFAULT_PATH NO_CACHE)
find_library(SLUICE_TORCH_C10 c10 PATHS ${SLUICE_TORCH_DIR}/torch/lib NO_DEFAULT_PATH NO_CACHE)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SluiceTorch
  REQUIRED_VARS SLUICE_TORCH_INCLUDE SLUICE_TORCH_CPU SLUICE_TORCH_C10
  REASON_FAILURE_MESSAGE "no torch in SLUICE_TORCH_DIR='${SLUICE_TORCH_DIR}'")

if(SluiceTorch_FOUND AND NOT TARGET sluice_torch)
  add_library(sluice_torch INTERFACE)
  target_include_directories(sluice_torch SYSTEM INTERFACE
    ${SLUICE_TORCH_INCLUDE} ${SLUICE_TORCH_INCLUDE}/torch/csrc/api/include)
  target_link_options(sluice_torch INTERFACE
    -Wl,--no-as-needed
    -Wl,-rpath,${SLUICE_TORCH_DIR}/torch/lib -Wl,-rpath,${SLUICE_TORCH_DIR}/nvidia/cu13/lib
    -Wl,-rpath-link,${SLUICE_TORCH_DIR}/nvidia/cu13/lib)
  # The wheel brings its own headers of fmt, newer than the system's library.
  add_library(sluice_torch_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/torch_fmt.cpp)
  target_include_directories(sluice_torch_fmt SYSTEM PRIVATE ${SLUICE_TORCH_INCLUDE})
  target_link_libraries(sluice_torch INTERFACE sluice_torch_fmt)
  target_link_libraries(sluice_torch INTERFACE ${SLUICE_TORCH_CPU} ${SLUICE_TORCH_C10})
  # at::parallel_for is parallel only in sources compiled with this.
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_compile_options(sluice_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>)
  target_link_libraries(sluice_torch INTERFACE ${OpenMP_CXX_LIBRARIES})
endif()
