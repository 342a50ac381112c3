# Chapter 07: a file a program.
foreach(part train plan checkpoint)
  include(${CMAKE_CURRENT_LIST_DIR}/07_3d/${part}.cmake OPTIONAL)
endforeach()
