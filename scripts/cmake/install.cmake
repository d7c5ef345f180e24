# What `cmake --install` lays down: the library, the public headers that the rooms list, and the package files.
include(CMakePackageConfigHelpers)

install(TARGETS halo EXPORT HaloTargets)
get_property(headers GLOBAL PROPERTY HALO_PUBLIC_HEADERS)
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halo/${folder})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/halo.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halo)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Halo)
install(EXPORT HaloTargets NAMESPACE halo:: DESTINATION ${package})
configure_package_config_file(${PROJECT_SOURCE_DIR}/scripts/cmake/HaloConfig.cmake.in ${CMAKE_BINARY_DIR}/HaloConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/HaloConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/HaloConfig.cmake ${CMAKE_BINARY_DIR}/HaloConfigVersion.cmake DESTINATION ${package})
set(HALO_PC_LIBS "-lpthread -ldl")
if(HALO_CUDA)
  string(APPEND HALO_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()
configure_file(${PROJECT_SOURCE_DIR}/scripts/cmake/halo.pc.in ${CMAKE_BINARY_DIR}/halo.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/halo.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
