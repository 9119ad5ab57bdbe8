# The native module: CPU loops for each instruction set and, where nvcc is found, the CUDA kernels.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(LUMIGRAD_CUDA "AUTO" CACHE STRING "Build the CUDA kernels: AUTO (if nvcc is found), ON or OFF")
set(LUMIGRAD_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures to compile for, or RELEASE: all that wheels have")
option(LUMIGRAD_EMULATION "Also build the CUDA kernels for the host, to test them without a GPU" OFF)
option(LUMIGRAD_WERROR "Warnings are errors" OFF)
set(LUMIGRAD_SANITIZE "" CACHE STRING "Sanitizers for the CPU kernels, e.g. address,undefined")

find_package(Threads REQUIRED)
execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

# Floating-point contraction is off: what is fused is written as fma(), so that every machine agrees.
set(LUMIGRAD_CXX_FLAGS -Wall -Wextra -ffp-contract=off -fno-math-errno -fno-trapping-math)
if(LUMIGRAD_WERROR)
  list(APPEND LUMIGRAD_CXX_FLAGS -Werror)
endif()
if(LUMIGRAD_SANITIZE)
  list(APPEND LUMIGRAD_CXX_FLAGS "-fsanitize=${LUMIGRAD_SANITIZE}" -fno-omit-frame-pointer)
endif()

set(NATIVE "${CMAKE_SOURCE_DIR}/kernels/native")
include("${CMAKE_SOURCE_DIR}/cmake/instruction_sets.cmake")

add_library(lumigrad_serving STATIC "${NATIVE}/serving/calls/records.cpp"
            "${NATIVE}/serving/calls/short_calls.cpp" "${NATIVE}/serving/cpu_render.cpp"
            "${NATIVE}/serving/frame.cpp" "${NATIVE}/serving/passes/cpu_distance.cpp"
            "${NATIVE}/serving/passes/cpu_retained.cpp" "${NATIVE}/serving/passes/payload_request.cpp"
            "${NATIVE}/serving/queue/account.cpp" "${NATIVE}/serving/reply.cpp" "${NATIVE}/serving/request.cpp")
target_compile_options(lumigrad_serving PRIVATE ${LUMIGRAD_CXX_FLAGS})
target_link_libraries(lumigrad_serving PUBLIC lumigrad_cpu)
file(GLOB LUMIGRAD_RESIDENT CONFIGURE_DEPENDS "${NATIVE}/resident/*.cpp")
list(FILTER LUMIGRAD_RESIDENT EXCLUDE REGEX "/bind")
target_sources(lumigrad_serving PRIVATE ${LUMIGRAD_RESIDENT})

file(GLOB LUMIGRAD_BINDINGS CONFIGURE_DEPENDS "${NATIVE}/*/bind.cpp" "${NATIVE}/serving/bind_accounts.cpp"
     "${NATIVE}/serving/bind_frame.cpp" "${NATIVE}/serving/bind_render.cpp" "${NATIVE}/serving/passes/bind_passes.cpp"
     "${NATIVE}/serving/calls/bind_calls.cpp" "${NATIVE}/serving/calls/bind_progress.cpp"
     "${NATIVE}/serving/calls/bind_records.cpp"
     "${NATIVE}/serving/passes/bind_retained.cpp"
     "${NATIVE}/serving/passes/bound_call.cpp")
nanobind_add_module(_native NB_STATIC NOMINSIZE "${NATIVE}/module.cpp" ${LUMIGRAD_BINDINGS})
target_link_libraries(_native PRIVATE lumigrad_serving)
target_compile_options(_native PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
if(LUMIGRAD_SANITIZE)
  target_link_options(_native PRIVATE "-fsanitize=${LUMIGRAD_SANITIZE}")
endif()
include("${CMAKE_SOURCE_DIR}/cmake/cuda.cmake")
# So that a GPU without code is told from one that is broken.
set_source_files_properties("${NATIVE}/common/bind.cpp" PROPERTIES COMPILE_DEFINITIONS
                            "LUMIGRAD_CUDA_ARCHITECTURES=\"${LUMIGRAD_BUILT_FOR}\"")
install(TARGETS _native LIBRARY DESTINATION lumigrad/kernels)
if(LUMIGRAD_EMULATION)
  add_subdirectory("${CMAKE_SOURCE_DIR}/tests/emulation" emulation)
endif()
