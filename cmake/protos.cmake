# The messages: protos/lumigrad/**/*.proto -> lumigrad/**/*_pb2.py with type stubs, generated at build time so that they
# always match the contract. The Python packages are named as the proto packages.
set(LUMIGRAD_PROTO_PACKAGES lumigrad/v1 lumigrad/drive/v1)
set(LUMIGRAD_MESSAGES_DIR "${CMAKE_BINARY_DIR}/messages")
set(LUMIGRAD_PROTOS)
set(LUMIGRAD_MESSAGE_FILES)
foreach(package IN LISTS LUMIGRAD_PROTO_PACKAGES)
  file(GLOB protos CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/protos/${package}/*.proto")
  set(messages)
  foreach(proto IN LISTS protos)
    get_filename_component(name "${proto}" NAME_WE)
    list(APPEND messages "${LUMIGRAD_MESSAGES_DIR}/${package}/${name}_pb2.py"
         "${LUMIGRAD_MESSAGES_DIR}/${package}/${name}_pb2.pyi")
  endforeach()
  list(APPEND LUMIGRAD_PROTOS ${protos})
  list(APPEND LUMIGRAD_MESSAGE_FILES ${messages})
  install(FILES ${messages} DESTINATION ${package})
endforeach()

# The folder of google/rpc/status.proto.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import google.rpc; print(google.rpc.__path__[0].rpartition('google')[0])"
  OUTPUT_VARIABLE LUMIGRAD_COMMON_PROTOS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

add_custom_command(
  OUTPUT ${LUMIGRAD_MESSAGE_FILES}
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${LUMIGRAD_MESSAGES_DIR}"
  COMMAND "${Python_EXECUTABLE}" -m grpc_tools.protoc "-I${CMAKE_SOURCE_DIR}/protos" "-I${LUMIGRAD_COMMON_PROTOS}"
          "--python_out=${LUMIGRAD_MESSAGES_DIR}" "--pyi_out=${LUMIGRAD_MESSAGES_DIR}" ${LUMIGRAD_PROTOS}
  DEPENDS ${LUMIGRAD_PROTOS}
  COMMENT "Generating messages"
  VERBATIM)
add_custom_target(lumigrad_messages ALL DEPENDS ${LUMIGRAD_MESSAGE_FILES})
