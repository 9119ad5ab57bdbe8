# One object library per instruction set from the same sources; isa.cpp chooses among them at run time.
set(LUMIGRAD_INSTRUCTION_SETS "ALL" CACHE STRING "Instruction sets of the CPU loops: ALL, or NATIVE: the fastest of this machine alone")
set(LUMIGRAD_ISAS portable)
# Without wide registers, GCC takes four times as long over the largest loops at -O3 as at -O2, for code that is as fast.
set(LUMIGRAD_FLAGS_portable -Wno-psabi -O2)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND LUMIGRAD_ISAS avx2 avx512)
  set(LUMIGRAD_FLAGS_avx2 -mavx2 -mfma -mbmi2 -mpopcnt)
  # GCC 12 warns about its own AVX-512 header.
  set(LUMIGRAD_FLAGS_avx512 -Wno-maybe-uninitialized -Wno-uninitialized -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mbmi2 -mpopcnt -mprefer-vector-width=512)
endif()

# All sets are the same sources, and the compiler takes minutes for each: one is enough for sanitizers, and for a machine
# that runs what it builds.
if(LUMIGRAD_SANITIZE AND "avx2" IN_LIST LUMIGRAD_ISAS)
  set(LUMIGRAD_ISAS avx2)
elseif(LUMIGRAD_INSTRUCTION_SETS STREQUAL "NATIVE")
  if(NOT DEFINED LUMIGRAD_FASTEST_ISA)
    file(WRITE "${CMAKE_BINARY_DIR}/fastest_isa.cpp" "#include <cstdio>\n#include \"common/isa.h\"\n"
         "int main() { std::fputs(lumigrad::isa_name(lumigrad::available_isas().back()).c_str(), stdout); }\n")
    list(TRANSFORM LUMIGRAD_ISAS PREPEND "-DLUMIGRAD_HAVE_" OUTPUT_VARIABLE LUMIGRAD_HAVE_ALL)
    try_run(LUMIGRAD_FASTEST_RAN LUMIGRAD_FASTEST_BUILT
            SOURCES "${CMAKE_BINARY_DIR}/fastest_isa.cpp" "${NATIVE}/common/isa.cpp"
            CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${NATIVE}" COMPILE_DEFINITIONS ${LUMIGRAD_HAVE_ALL}
            RUN_OUTPUT_VARIABLE LUMIGRAD_FASTEST)
    if(NOT LUMIGRAD_FASTEST IN_LIST LUMIGRAD_ISAS)
      message(FATAL_ERROR "Cannot tell this machine's instruction set; build with LUMIGRAD_INSTRUCTION_SETS=ALL")
    endif()
    set(LUMIGRAD_FASTEST_ISA "${LUMIGRAD_FASTEST}" CACHE INTERNAL "The fastest instruction set of this machine")
  endif()
  set(LUMIGRAD_ISAS "${LUMIGRAD_FASTEST_ISA}")
endif()
message(STATUS "Instruction sets of the CPU loops: ${LUMIGRAD_ISAS}")

file(GLOB LUMIGRAD_ISA_SOURCES CONFIGURE_DEPENDS "${NATIVE}/*/cpu/*.cpp" "${NATIVE}/*/cpu/*/*.cpp")
# What gains nothing from SIMD: compiled once, also for the CUDA engines.
file(GLOB LUMIGRAD_BUILD_SOURCES CONFIGURE_DEPENDS "${NATIVE}/*/build/*.cpp")
add_library(lumigrad_common STATIC "${NATIVE}/common/threads.cpp" "${NATIVE}/common/pool.cpp" "${NATIVE}/common/room.cpp"
            "${NATIVE}/serving/passes/camera_gradient.cpp"
            "${NATIVE}/serving/passes/distance.cpp" "${NATIVE}/serving/passes/retained.cpp" "${NATIVE}/serving/queue/estimates.cpp"
            "${NATIVE}/serving/queue/lines.cpp" "${NATIVE}/serving/queue/queue.cpp" "${NATIVE}/serving/render.cpp"
            "${NATIVE}/spheres/opencv_camera.cpp"
            ${LUMIGRAD_BUILD_SOURCES})
target_include_directories(lumigrad_common PUBLIC "${NATIVE}")
target_compile_options(lumigrad_common PRIVATE ${LUMIGRAD_CXX_FLAGS})
target_link_libraries(lumigrad_common PUBLIC Threads::Threads)
file(GLOB LUMIGRAD_DISPATCHERS CONFIGURE_DEPENDS "${NATIVE}/*/dispatch.cpp")
add_library(lumigrad_cpu STATIC "${NATIVE}/common/isa.cpp" ${LUMIGRAD_DISPATCHERS})
target_compile_options(lumigrad_cpu PRIVATE ${LUMIGRAD_CXX_FLAGS})
target_link_libraries(lumigrad_cpu PUBLIC lumigrad_common)
foreach(isa IN LISTS LUMIGRAD_ISAS)
  add_library(lumigrad_cpu_${isa} OBJECT ${LUMIGRAD_ISA_SOURCES})
  target_include_directories(lumigrad_cpu_${isa} PRIVATE "${NATIVE}")
  target_compile_options(lumigrad_cpu_${isa} PRIVATE ${LUMIGRAD_CXX_FLAGS} ${LUMIGRAD_FLAGS_${isa}})
  target_compile_definitions(lumigrad_cpu_${isa} PRIVATE LUMIGRAD_ISA=${isa} LUMIGRAD_ISA_${isa}=1)
  target_sources(lumigrad_cpu PRIVATE $<TARGET_OBJECTS:lumigrad_cpu_${isa}>)
  target_compile_definitions(lumigrad_cpu PRIVATE LUMIGRAD_HAVE_${isa}=1)
endforeach()
