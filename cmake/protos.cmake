# The messages: protos/lumigrad/v1/*.proto -> lumigrad/v1/*_pb2.py with type stubs, generated at build time so that
# they always match the contract. The Python package is named as the proto package.
file(GLOB LUMIGRAD_PROTOS CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/protos/lumigrad/v1/*.proto")
set(LUMIGRAD_MESSAGES_DIR "${CMAKE_BINARY_DIR}/messages")
set(LUMIGRAD_MESSAGES)
foreach(proto IN LISTS LUMIGRAD_PROTOS)
  get_filename_component(name "${proto}" NAME_WE)
  list(APPEND LUMIGRAD_MESSAGES "${LUMIGRAD_MESSAGES_DIR}/lumigrad/v1/${name}_pb2.py"
       "${LUMIGRAD_MESSAGES_DIR}/lumigrad/v1/${name}_pb2.pyi")
endforeach()

add_custom_command(
  OUTPUT ${LUMIGRAD_MESSAGES}
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${LUMIGRAD_MESSAGES_DIR}"
  COMMAND "${Python_EXECUTABLE}" -m grpc_tools.protoc "-I${CMAKE_SOURCE_DIR}/protos"
          "--python_out=${LUMIGRAD_MESSAGES_DIR}" "--pyi_out=${LUMIGRAD_MESSAGES_DIR}" ${LUMIGRAD_PROTOS}
  DEPENDS ${LUMIGRAD_PROTOS}
  COMMENT "Generating messages"
  VERBATIM)
add_custom_target(lumigrad_messages ALL DEPENDS ${LUMIGRAD_MESSAGES})
install(FILES ${LUMIGRAD_MESSAGES} DESTINATION lumigrad/v1)
