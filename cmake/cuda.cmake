# The CUDA kernels, where nvcc is found: a static library with the runtime inside, so that the module needs neither a
# GPU nor a driver to be imported.
if(LUMIGRAD_CUDA STREQUAL "OFF")
  return()
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(LUMIGRAD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LUMIGRAD_CUDA is ON, but nvcc was not found; put it on the PATH or set CMAKE_CUDA_COMPILER")
  endif()
  message(STATUS "nvcc was not found: the module is built for the CPU only")
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES "${LUMIGRAD_CUDA_ARCHITECTURES}")
if(LUMIGRAD_CUDA_ARCHITECTURES STREQUAL "RELEASE")
  # Turing, A100, other Ampere, Ada, Hopper, Blackwell; the last also as PTX, which newer GPUs compile for themselves.
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)
  if(CMAKE_CUDA_COMPILER MATCHES "clang")
    # Those that Clang 19 knows.
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
  endif()
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB LUMIGRAD_CUDA_SOURCES CONFIGURE_DEPENDS "${NATIVE}/*/cuda/*.cpp" "${NATIVE}/*/cuda/*.cu"
     "${NATIVE}/*/cuda/*/*.cu")
file(GLOB LUMIGRAD_CUDA_BINDINGS CONFIGURE_DEPENDS "${NATIVE}/*/bind_cuda.cpp")
# As on the CPU nothing is fused that is not written as fma(); constexpr functions of the host also run on the device.
if(CMAKE_CUDA_COMPILER_ID STREQUAL "Clang")
  # Clang before 20 does not know __grid_constant__.
  set(LUMIGRAD_CUDA_FLAGS -ffp-contract=off -Wall -Wextra -Wno-unknown-cuda-version -Wno-unknown-attributes
      -Wno-bitwise-instead-of-logical)
else()
  set(LUMIGRAD_CUDA_FLAGS -fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra)
endif()
if(LUMIGRAD_WERROR AND CMAKE_CUDA_COMPILER_ID STREQUAL "Clang")
  list(APPEND LUMIGRAD_CUDA_FLAGS -Werror)
elseif(LUMIGRAD_WERROR)
  list(APPEND LUMIGRAD_CUDA_FLAGS -Werror=all-warnings -Xcompiler=-Werror)
endif()
add_library(lumigrad_cuda STATIC ${LUMIGRAD_CUDA_SOURCES})
target_include_directories(lumigrad_cuda PUBLIC "${NATIVE}")
target_compile_definitions(lumigrad_cuda PUBLIC LUMIGRAD_CUDA=1)
target_compile_options(lumigrad_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${LUMIGRAD_CUDA_FLAGS}>
                                             $<$<COMPILE_LANGUAGE:CXX>:${LUMIGRAD_CXX_FLAGS}>)
target_link_libraries(lumigrad_cuda PUBLIC CUDA::cudart_static)
target_sources(_native PRIVATE ${LUMIGRAD_CUDA_BINDINGS})
target_link_libraries(_native PRIVATE lumigrad_cuda)
list(JOIN CMAKE_CUDA_ARCHITECTURES "," LUMIGRAD_BUILT_FOR)
