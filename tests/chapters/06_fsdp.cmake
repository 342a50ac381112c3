# Chapter 06, a file a program.
foreach(part zero fsdp checkpoint)
  include(${CMAKE_CURRENT_LIST_DIR}/06_fsdp/${part}.cmake OPTIONAL)
endforeach()
