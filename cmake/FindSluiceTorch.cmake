# Finds libtorch in a Python package folder (SLUICE_TORCH_DIR holds `torch/`, and `nvidia/` where the
# wheel was built for CUDA), and defines the target sluice_torch. The wheel's own CMake package insists on a
# CUDA toolkit; on the CPU nothing of CUDA but its runtime library is needed. Programs that find_package(sluice)
# run this module, too.
find_path(SLUICE_TORCH_INCLUDE ATen/ATen.h PATHS ${SLUICE_TORCH_DIR}/torch/include NO_DEFAULT_PATH NO_CACHE)
find_library(SLUICE_TORCH_CPU torch_cpu PATHS ${SLUICE_TORCH_DIR}/torch/lib NO_DEFAULT_PATH NO_CACHE)
find_library(SLUICE_TORCH_C10 c10 PATHS ${SLUICE_TORCH_DIR}/torch/lib NO_DEFAULT_PATH NO_CACHE)

if(EXISTS ${SLUICE_TORCH_DIR}/torch/version.py)
  file(STRINGS ${SLUICE_TORCH_DIR}/torch/version.py SluiceTorch_VERSION REGEX "^__version__")
  string(REGEX REPLACE "^[^0-9]*([0-9]+(\\.[0-9]+)*).*" "\\1" SluiceTorch_VERSION "${SluiceTorch_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SluiceTorch
  REQUIRED_VARS SLUICE_TORCH_INCLUDE SLUICE_TORCH_CPU SLUICE_TORCH_C10
  VERSION_VAR SluiceTorch_VERSION
  REASON_FAILURE_MESSAGE "SLUICE_TORCH_DIR is '${SLUICE_TORCH_DIR}': name the folder that holds Python's torch package")

if(SluiceTorch_FOUND AND NOT TARGET sluice_torch)
  add_library(sluice_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(sluice_torch SYSTEM INTERFACE
    ${SLUICE_TORCH_INCLUDE} ${SLUICE_TORCH_INCLUDE}/torch/csrc/api/include)
  target_link_options(sluice_torch INTERFACE
    -Wl,--no-as-needed
    -Wl,-rpath,${SLUICE_TORCH_DIR}/torch/lib -Wl,-rpath,${SLUICE_TORCH_DIR}/nvidia/cu13/lib
    -Wl,-rpath-link,${SLUICE_TORCH_DIR}/nvidia/cu13/lib)
  target_link_libraries(sluice_torch INTERFACE sluice::torch_fmt ${SLUICE_TORCH_CPU} ${SLUICE_TORCH_C10})
  # at::parallel_for is parallel only in sources compiled with this.
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  target_compile_options(sluice_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>)
  target_link_libraries(sluice_torch INTERFACE ${OpenMP_CXX_LIBRARIES})
endif()
