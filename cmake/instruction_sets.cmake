# One object library per instruction set from the same sources; isa.cpp chooses among them at run time.
set(LUMIGRAD_ISAS portable)
# All sets are the same sources. Only one is built with sanitizers, beside the portable one that must be there, which
# nothing runs then: the compiler takes minutes for the others.
set(LUMIGRAD_SANITIZED_ISA portable)
# Without wide registers, GCC takes four times as long over the largest loops at -O3 as at -O2, for code that is as fast.
set(LUMIGRAD_FLAGS_portable -Wno-psabi -O2)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND LUMIGRAD_ISAS avx2 avx512)
  set(LUMIGRAD_SANITIZED_ISA avx2)
  set(LUMIGRAD_FLAGS_avx2 -mavx2 -mfma -mbmi2 -mpopcnt)
  # GCC 12 warns about its own AVX-512 header.
  set(LUMIGRAD_FLAGS_avx512 -Wno-maybe-uninitialized -Wno-uninitialized -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mbmi2 -mpopcnt -mprefer-vector-width=512)
endif()

if(LUMIGRAD_SANITIZE)
  set(LUMIGRAD_ISAS portable ${LUMIGRAD_SANITIZED_ISA})
  list(REMOVE_DUPLICATES LUMIGRAD_ISAS)
endif()

file(GLOB LUMIGRAD_ISA_SOURCES CONFIGURE_DEPENDS "${NATIVE}/*/cpu/*.cpp" "${NATIVE}/*/cpu/*/*.cpp")
# What gains nothing from SIMD: compiled once, also for the CUDA engines.
file(GLOB LUMIGRAD_BUILD_SOURCES CONFIGURE_DEPENDS "${NATIVE}/*/build/*.cpp")
add_library(lumigrad_common STATIC "${NATIVE}/common/threads.cpp" "${NATIVE}/common/pool.cpp"
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
  if(LUMIGRAD_SANITIZE AND NOT isa STREQUAL LUMIGRAD_SANITIZED_ISA)
    target_compile_options(lumigrad_cpu_${isa} PRIVATE -fno-sanitize=all -g0)
  endif()
  target_compile_definitions(lumigrad_cpu_${isa} PRIVATE LUMIGRAD_ISA=${isa} LUMIGRAD_ISA_${isa}=1)
  target_sources(lumigrad_cpu PRIVATE $<TARGET_OBJECTS:lumigrad_cpu_${isa}>)
  target_compile_definitions(lumigrad_cpu PRIVATE LUMIGRAD_HAVE_${isa}=1)
endforeach()
