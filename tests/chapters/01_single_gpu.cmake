# Chapter 01. Its numbers are compared with PyTorch's by the golden tests; here is what those cannot see.
set(mlp $<TARGET_FILE:solution_01_single_gpu_mlp>)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)
add_executable(compare_training ${CMAKE_CURRENT_LIST_DIR}/compare_training.cpp)
add_executable(check_step ${CMAKE_CURRENT_LIST_DIR}/check_step.cpp)
foreach(target compare_training check_step)
  target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
  target_compile_options(${target} PRIVATE ${WORKSHOP_WARNINGS})
endforeach()

# Central differences of the loss, through every activation and at several depths.
foreach(activation none relu gelu)
  workshop_test(solution.01.gradients.${activation} LABELS solution
                COMMAND ${mlp} --gradient-check --activation ${activation} --layers 7,9,8,5 --max-steps 1)
endforeach()
# A value that is shifted in a copy which the stream does not wait for has not arrived when the loss is computed.
workshop_test(solution.01.gradients.slow LABELS solution ENVIRONMENT WORKSHOP_SLOW=kernels
              COMMAND ${mlp} --gradient-check --layers 3,2,2 --max-steps 1)

# One cuBLAS handle, and so one workspace, for each stream.
workshop_program(shared_handles SOURCE ${CMAKE_CURRENT_LIST_DIR}/01_single_gpu/shared_handles.cu
                 INCLUDE ${CMAKE_SOURCE_DIR}/solutions OUTPUT ${CMAKE_CURRENT_BINARY_DIR})
target_compile_options(shared_handles PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_WARNINGS}>)
workshop_test(solution.01.shared_handles LABELS solution COMMAND shared_handles)

# What a step must not do, and what the README says that a run sends and holds: 4·(38 parameters) bytes, gradients
# likewise, and activations of 32 rows.
workshop_test(solution.01.step LABELS solution
              COMMAND ${run_then} ${mlp} --epochs 2 --record run.jsonl
                      -- $<TARGET_FILE:check_step> run.jsonl parameters=152 gradients=152 optimizer=0
                         activations=1792 buckets=0)
workshop_test(solution.01.step.adamw LABELS solution
              COMMAND ${run_then} ${mlp} --optimizer adamw --activation gelu --record run.jsonl
                      -- $<TARGET_FILE:check_step> run.jsonl parameters=152 gradients=152 optimizer=304
                         activations=2304 buckets=0)
# A device that is too small for the model: one line, status 1.
workshop_test(solution.01.out_of_memory LABELS solution ENVIRONMENT WORKSHOP_DEVICE_MEMORY=1M
              COMMAND ${CMAKE_SOURCE_DIR}/tools/expect_status -e "cudaMalloc.*cudaErrorMemoryAllocation" 1
                      ${mlp} --layers 1024,1024,1024)

# (In a regex '.' stands for ';', which CMake would take for the end of a list's element.)
# bad_input(name message RANKS n PROGRAM target …): status 2 and one line that matches, not a job that hangs.
function(bad_input name message)
  cmake_parse_arguments(arg "" "RANKS" "PROGRAM;ENVIRONMENT" ${ARGN})
  workshop_test(${name} LABELS solution ENVIRONMENT ${arg_ENVIRONMENT} TIMEOUT 120
                COMMAND ${CMAKE_SOURCE_DIR}/tests/chapters/one_line 2 ${message}
                        ${CMAKE_SOURCE_DIR}/tools/launch -n ${arg_RANKS} -t 100 -- ${arg_PROGRAM})
endfunction()

bad_input(solution.01.bad.ranks "mlp trains on one GPU. it was started on 2 ranks" RANKS 2 PROGRAM ${mlp})
bad_input(solution.01.bad.layers "--layers is '6'. expected two or more" RANKS 1 PROGRAM ${mlp} --layers 6)
bad_input(solution.01.bad.record "--record is '/nowhere/run.jsonl', which cannot be written" RANKS 1
          PROGRAM ${mlp} --record /nowhere/run.jsonl)
