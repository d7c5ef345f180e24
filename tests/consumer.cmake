# cmake -DBUILD=... -DSOURCE=... -DGENERATOR=... -P consumer.cmake: installs Halo into a folder, moves the folder, and builds
# and runs a separate project against it.
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
run(${CMAKE_COMMAND} -S ${SOURCE}/tests/consumer -B ${work}/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${work}/moved
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
