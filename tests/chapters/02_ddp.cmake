# Chapter 02: parallel equals serial.
#
# P ranks with B rows each go through the same global batches as one rank with P·B rows, and add up the same products in
# another order. A gradient is a mean of n = P·B products; in whatever order they are added, it is off by at most
# γₙ ≈ n·2⁻²⁴ times the largest of them, M. A step of SGD passes lr times that on to the parameters, so after T steps two
# runs differ by at most T·lr·2·n·2⁻²⁴·M. What earlier differences do to later gradients is smaller by lr. The same holds
# for the loss, a mean over n terms, without T and lr. Here n = 96, T = 20, lr = 0.01 and, for standard normal data, M < 10:
# 2.3·10⁻⁵ for the parameters, 1.2·10⁻⁴ for the losses. Found: 1.2·10⁻⁷.
set(bound 1.2e-4)
set(ddp $<TARGET_FILE:solution_02_ddp_ddp>)
set(overlap $<TARGET_FILE:solution_02_ddp_ddp_overlap>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)

# same_training(name BOUND b EXPECTED ranks program… FOUND ranks program…): both must learn the same; without a bound,
# to the last bit (on GPUs, to WORKSHOP_SAME_BITS).
function(same_training name)
  cmake_parse_arguments(arg "" "BOUND" "EXPECTED;FOUND" ${ARGN})
  if(NOT arg_BOUND)
    set(arg_BOUND ${WORKSHOP_SAME_BITS})
  endif()
  list(GET arg_EXPECTED 0 most)
  list(GET arg_FOUND 0 ranks)
  if(ranks GREATER most)
    set(most ${ranks})
  endif()
  workshop_test(${name} LABELS solution TIMEOUT 120 MOST_RANKS ${most}
                COMMAND ${CMAKE_SOURCE_DIR}/tests/chapters/same_training $<TARGET_FILE:compare_training> ${arg_BOUND}
                        ${arg_EXPECTED} --- ${arg_FOUND})
endfunction()

set(training --samples 960 --epochs 2 --log-every 0)
foreach(ranks 2 3 4 8)
  math(EXPR rows "96 / ${ranks}")
  set(parallel ${ranks} ${ddp} ${training} --batch-size ${rows})
  same_training(solution.02.ddp_equals_serial.${ranks} BOUND ${bound}
                EXPECTED 1 ${ddp} ${training} --batch-size 96 FOUND ${parallel})
  # One bucket or several: on two ranks each sum has two terms, so not a bit differs. On more, the order of the terms may
  # depend on the size of the message.
  set(allowed BOUND ${bound})
  if(ranks EQUAL 2)
    set(allowed)
  endif()
  same_training(solution.02.overlap_equals_ddp.${ranks} ${allowed}
                EXPECTED ${parallel} FOUND ${ranks} ${overlap} ${training} --batch-size ${rows} --bucket-mb 0.0001)
endforeach()
# On one rank there is nothing to average, and in order all programs see the same batches: equal to the last bit.
set(net --no-shuffle --layers 16,9,3 --activation gelu)
foreach(program ddp overlap)
  same_training(solution.02.${program}_on_one_rank EXPECTED 1 $<TARGET_FILE:solution_01_single_gpu_mlp> ${net}
                FOUND 1 ${${program}} ${net})
endforeach()
# The validation loss does not depend on the number of ranks, though neither 3 nor 4 divides the 101 samples.
foreach(ranks 3 4)
  math(EXPR rows "12 / ${ranks}")
  set(split ${ddp} --samples 341 --epochs 2 --validation-samples 101 --log-every 0)
  same_training(solution.02.validation.${ranks} BOUND ${bound}
                EXPECTED 1 ${split} --batch-size 12 FOUND ${ranks} ${split} --batch-size ${rows})
endforeach()
# Four batches of 8 rows and one update are one batch of 32 rows; 100 samples a rank leave a last step of 4 rows.
foreach(program ddp overlap)
  set(run 2 ${${program}} --samples 200 --epochs 3)
  same_training(solution.02.${program}_accumulation BOUND ${bound}
                EXPECTED ${run} --batch-size 32 FOUND ${run} --batch-size 8 --accumulation-steps 4)
endforeach()

# ---- the ledger, as in the README ----------------------------------------------------------------------------------
# 38 parameters in 4 tensors, 16 steps an epoch on two ranks.
# ledger(name command RANK OP CALLS BYTES …)
function(ledger name program options)
  workshop_test(solution.02.ledger.${name} LABELS solution
                COMMAND ${run_then} ${launch} -n 2 -- ${program} ${options} --record run.jsonl
                        -- $<TARGET_FILE:check_ledger> run.jsonl ${ARGN})
endfunction()
# A broadcast a tensor; an all-reduce a tensor and step, and one of the epoch's 16 losses.
ledger(ddp ${ddp} "" all ncclBroadcast 4 152 all ncclAllReduce 65 2496)
ledger(ddp_two_epochs ${ddp} "--epochs;2" all ncclBroadcast 4 152 all ncclAllReduce 130 4992)
# Accumulating over 4 batches leaves 4 steps, which communicate once each.
ledger(ddp_accumulation ${ddp} "--accumulation-steps;4" all ncclBroadcast 4 152 all ncclAllReduce 17 624)
# One bucket, or one a layer: the same bytes.
ledger(overlap_one_bucket ${overlap} "" all ncclBroadcast 1 152 all ncclAllReduce 17 2496)
ledger(overlap_two_buckets ${overlap} "--bucket-mb;0.00003" all ncclBroadcast 1 152 all ncclAllReduce 33 2496)

# ---- a step --------------------------------------------------------------------------------------------------------
foreach(program ddp overlap)
  workshop_test(solution.02.step.${program} LABELS solution
                COMMAND ${run_then} ${launch} -n 2 -- ${${program}} --record run.jsonl
                        -- $<TARGET_FILE:check_step> run.jsonl parameters=152 gradients=152 optimizer=0
                           activations=1792 buckets=0)
endforeach()
# The all-reduce of the first bucket is under way while the layers below still compute.
workshop_test(solution.02.overlap_is_real LABELS solution ENVIRONMENT WORKSHOP_SLOW=kernels
              COMMAND ${run_then} ${launch} -n 2 -- ${overlap} --bucket-mb 0.00003 --max-steps 3 --timeline timeline.json
                      -- $<TARGET_FILE:check_overlap> timeline.json)
add_executable(check_overlap ${CMAKE_CURRENT_LIST_DIR}/check_overlap.cpp)
target_link_libraries(check_overlap PRIVATE nlohmann_json::nlohmann_json)
target_compile_options(check_overlap PRIVATE ${WORKSHOP_WARNINGS})

# ---- bad input -----------------------------------------------------------------------------------------------------
foreach(ranks 1 4)
  foreach(program ddp overlap)
    set(bad solution.02.bad.${program}.${ranks})
    set(run RANKS ${ranks} PROGRAM ${${program}})
    bad_input(${bad}.batch "--batch-size is '0'. expected a whole number of at least 1" ${run} --batch-size 0)
    bad_input(${bad}.activation "--activation is 'tanh'. expected none, relu, gelu" ${run} --activation tanh)
    bad_input(${bad}.record "--record is '/nowhere/r', which cannot be written: No such file" ${run} --record /nowhere/r)
    bad_input(${bad}.unknown "--bucket" ${run} --bucket 3)
  endforeach()
  bad_input(solution.02.bad.accumulation.${ranks} "--accumulation-steps is '0'. expected" RANKS ${ranks}
            PROGRAM ${ddp} --accumulation-steps 0)
  bad_input(solution.02.bad.validation.${ranks} "--validation-samples is '1024'. expected fewer than the 1024 of"
            RANKS ${ranks} PROGRAM ${ddp} --validation-samples 1024)
  bad_input(solution.02.bad.bucket.${ranks} "--bucket-mb is '0'. expected a number greater than 0" RANKS ${ranks}
            PROGRAM ${overlap} --bucket-mb 0)
endforeach()
bad_input(solution.02.bad.world "RANK and WORLD_SIZE say rank 0 of 2, but mpirun started" RANKS 4
          CPU_ONLY "mpirun need not start the ranks"
          PROGRAM env RANK=0 WORLD_SIZE=2 ${ddp})
bad_input(solution.02.bad.world_size "WORLD_SIZE is 'two'. expected a whole number" RANKS 1
          PROGRAM env RANK=0 WORLD_SIZE=two ${ddp})
bad_input(solution.02.bad.rank "RANK is 4, but WORLD_SIZE is 4: ranks are counted from 0" RANKS 1
          PROGRAM env RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 ${ddp})
bad_input(solution.02.bad.torchrun "the cpu backend starts several ranks with mpirun or srun --mpi=pmix. found torchrun.s variables" RANKS 1
          CPU_ONLY "GPUs need no MPI"
          PROGRAM env RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 ${ddp})
