# Decides what becomes of CUDA, after FindSluiceTorch:
#   linked    programs run on a GPU: nvcc is there and libtorch_cuda links
#   compiled  nvcc is there, but libtorch_cuda lacks the libraries it needs (the CPU-only install of torch
#             holds that file, too): the CUDA sources are compiled to see that they can be, and not linked
#   absent    no nvcc, or SLUICE_CUDA=OFF
# in SLUICE_CUDA_STATE, and says so. Where linked, the target sluice_torch_cuda has the libraries, and where
# there is NCCL, sluice_nccl has its library; SLUICE_NCCL_INCLUDE has its header. Programs that find_package(sluice)
# run this, too, where sluice was linked with CUDA.

# Sees whether libtorch_cuda links, and defines the targets. A function, so that its variables stay here.
function(sluice_link_cuda)
  set(lib ${SLUICE_TORCH_DIR}/torch/lib)
  set(nvidia ${SLUICE_TORCH_DIR}/nvidia)
  set(folders ${lib})
  foreach(part cu13 cudnn nccl cusparselt nvshmem)
    if(IS_DIRECTORY ${nvidia}/${part}/lib)
      list(APPEND folders ${nvidia}/${part}/lib)
    endif()
  endforeach()
  # The ones that torch itself was linked with, so that there is one of each in a program.
  file(GLOB cudart ${nvidia}/cu13/lib/libcudart.so.*)
  file(GLOB cublas ${nvidia}/cu13/lib/libcublas.so.* ${nvidia}/cu13/lib/libcublasLt.so.*)
  set(options -Wl,--no-as-needed)
  foreach(folder ${folders})
    list(APPEND options -Wl,-rpath,${folder} -Wl,-rpath-link,${folder})
  endforeach()
  set(libraries ${lib}/libtorch_cuda.so ${lib}/libc10_cuda.so ${cudart} ${cublas})
  file(WRITE ${CMAKE_BINARY_DIR}/try_cuda.cpp
    "#include <ATen/cuda/CUDAContext.h>\n#include <cublasLt.h>\nint main() { return cublasLtGetVersion() + cublasSetSmCountTarget(at::cuda::getCurrentCUDABlasHandle(), 0); }\n")
  if(EXISTS ${lib}/libtorch_cuda.so AND cudart)
    try_compile(SLUICE_CUDA_LINKS ${CMAKE_BINARY_DIR} ${CMAKE_BINARY_DIR}/try_cuda.cpp
      CMAKE_FLAGS
        "-DINCLUDE_DIRECTORIES=${SLUICE_TORCH_INCLUDE};${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}"
      LINK_OPTIONS ${options}
      LINK_LIBRARIES ${libraries} ${SLUICE_TORCH_CPU} ${SLUICE_TORCH_C10}
      CXX_STANDARD 20
      OUTPUT_VARIABLE SLUICE_CUDA_LOG)
  endif()
  if(SLUICE_CUDA_LINKS)
    set(SLUICE_CUDA_STATE linked)
    set(SLUICE_CUDA_STATE linked PARENT_SCOPE)
    add_library(sluice_torch_cuda INTERFACE IMPORTED GLOBAL)
    target_include_directories(sluice_torch_cuda SYSTEM INTERFACE
      ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    target_link_options(sluice_torch_cuda INTERFACE ${options})
    target_link_libraries(sluice_torch_cuda INTERFACE ${libraries} sluice_torch)
  else()
    file(WRITE ${CMAKE_BINARY_DIR}/try_cuda.log "${SLUICE_CUDA_LOG}")
  endif()

  # NCCL comes with a torch that has CUDA, or with the toolkit.
  get_filename_component(toolkit ${CMAKE_CUDA_COMPILER} DIRECTORY)
  get_filename_component(toolkit ${toolkit} DIRECTORY)
  find_path(SLUICE_NCCL_INCLUDE nccl.h PATHS ${nvidia}/nccl/include NO_DEFAULT_PATH)
  find_path(SLUICE_NCCL_INCLUDE nccl.h PATHS ${toolkit}/include)
  find_library(SLUICE_NCCL_LIBRARY NAMES libnccl.so.2 libnccl.so PATHS ${nvidia}/nccl/lib NO_DEFAULT_PATH)
  find_library(SLUICE_NCCL_LIBRARY NAMES libnccl.so.2 libnccl.so PATHS ${toolkit}/lib ${toolkit}/lib64)
  if(SLUICE_CUDA_STATE STREQUAL linked AND SLUICE_NCCL_INCLUDE AND SLUICE_NCCL_LIBRARY)
    add_library(sluice_nccl INTERFACE IMPORTED GLOBAL)
    target_link_libraries(sluice_nccl INTERFACE ${SLUICE_NCCL_LIBRARY})
  endif()
endfunction()

set(SLUICE_CUDA_STATE absent)
if(SLUICE_CUDA)
  include(CheckLanguage)
  # Not in the PATH of a plain shell, but where the toolkit's own installer puts it.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(SLUICE_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(SLUICE_NVCC)
      set(CMAKE_CUDA_COMPILER ${SLUICE_NVCC})
    endif()
  endif()
  check_language(CUDA)
endif()
if(CMAKE_CUDA_COMPILER)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
  set(CMAKE_CUDA_STANDARD 17)  # what CMake 3.25 knows a flag for
  enable_language(CUDA)
  set(SLUICE_CUDA_STATE compiled)
  sluice_link_cuda()
endif()
message(STATUS "CUDA: ${SLUICE_CUDA_STATE}")
