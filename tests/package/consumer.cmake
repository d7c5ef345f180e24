# cmake -DBUILD=... -DSOURCE=... -DGENERATOR=... -DWITH_CUDA=... -P consumer.cmake: installs Halo into a folder, moves the
# folder, and builds and runs a separate project against it: by find_package, with other instruction sets than Halo's own,
# and by pkg-config.
set(work ${BUILD}/consumer)
file(REMOVE_RECURSE ${work})
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGV}\n${output}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/moved)
# Eigen, JSON and the image libraries are Halo's own affair: their headers are in no public header.
execute_process(COMMAND grep -rlE "include *<(Eigen|nlohmann|png|jpeglib|zlib|cuda)" ${work}/moved/include OUTPUT_VARIABLE found)
if(NOT found STREQUAL "")
  message(FATAL_ERROR "public headers include private ones: ${found}")
endif()
foreach(flags "-Wall -Wextra -Werror" "-march=native -Wall -Wextra -Werror")
  run(${CMAKE_COMMAND} -S ${SOURCE}/tests/package/consumer -B ${work}/build -G ${GENERATOR} --fresh
      -DCMAKE_PREFIX_PATH=${work}/moved -DWITH_CUDA=${WITH_CUDA} "-DCMAKE_CXX_FLAGS=${flags}")
  run(${CMAKE_COMMAND} --build ${work}/build)
  run(${work}/build/consumer)
endforeach()
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  file(GLOB_RECURSE file ${work}/moved/*/halo.pc)
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(library ${folder} DIRECTORY)
  run(sh -c "PKG_CONFIG_PATH=${folder} && export PKG_CONFIG_PATH && c++ -std=c++20 ${SOURCE}/tests/package/consumer/main.cpp \
      -o ${work}/by_pkg_config $(pkg-config --cflags --libs halo) -Wl,-rpath,${library}")
  run(${work}/by_pkg_config)
endif()
