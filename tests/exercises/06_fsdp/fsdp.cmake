# Units of 35, 24, 20 and 10 values; 35 is odd. All tensors of three steps, in every mode that has TODOs of its own.
set(net --layers 6,5,4,4,2 --log-every 0)
set(steps ${net} --optimizer adamw --max-steps 3)
set(hybrid ${steps} --hybrid 2 --cpu-offload --accumulation-steps 2)
workshop_check(06_fsdp fsdp RANKS 1 2 3 OPTIONS ${steps})
workshop_check(06_fsdp fsdp RANKS 4 OPTIONS ${hybrid})
workshop_check(06_fsdp fsdp RANKS 2 OPTIONS ${net} --unit-layers 2 --no-reshard-after-forward --epochs 2)
# The slow runs bring out a missing event every time; in one step alone, because what a missing event lets through
# spoils all that comes later, and earlier TODOs would be blamed. For the same reason first without prefetching and with
# slow collectives: a gather that does not wait then still comes too late to spoil the work that it should wait for.
set(one_step ${net} --max-steps 1)
set(serial ${one_step} --no-prefetch)
set(slow collectives kernels,collectives)
workshop_check(06_fsdp fsdp RANKS 2 SLOW ${slow} OPTIONS ${serial})
workshop_check(06_fsdp fsdp RANKS 2 SLOW collectives kernels OPTIONS ${one_step})

# A TODO of chapter 01 that is met in the update on the host, in a program that has recorded something by then.
set(folder ${CMAKE_BINARY_DIR}/fillings/01.8-unfilled_mlp)
set(snippet ${CMAKE_SOURCE_DIR}/tests/exercises/01_single_gpu/01.8-unfilled.cu)
_workshop_generated_program(filling_01.8-unfilled_mlp 01_single_gpu mlp ${folder} FILL --fill 01.8=${snippet}
                            DEPENDS ${snippet})
workshop_program(unfilled_host_update SOURCE ${CMAKE_SOURCE_DIR}/solutions/06_fsdp/fsdp.cu
                 INCLUDE ${folder} ${CMAKE_SOURCE_DIR}/solutions OUTPUT ${folder})
target_compile_options(unfilled_host_update PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_EXERCISE_WARNINGS}>
                       $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177>)
add_dependencies(unfilled_host_update filling_01.8-unfilled_mlp)
workshop_test(unfilled.06_fsdp.host_update LABELS solution
              COMMAND ${CMAKE_SOURCE_DIR}/tools/expect_status -e "01_single_gpu/optimizer.h:[0-9]+" 77
                      ${CMAKE_SOURCE_DIR}/tools/launch -n 2 -t 20 -- $<TARGET_FILE:unfilled_host_update> ${steps}
                      --cpu-offload --record run.jsonl)

# fsdp_wrongs(options RANKS n [SLOW …] MISTAKES …): each must be traced to its own TODO.
function(fsdp_wrongs options)
  cmake_parse_arguments(arg "" "RANKS" "SLOW;MISTAKES" ${ARGN})
  foreach(mistake ${arg_MISTAKES})
    string(REGEX MATCH "^[0-9.]+" todo ${mistake})
    workshop_wrong_filling(06_fsdp fsdp ${mistake} RANKS ${arg_RANKS} SLOW ${arg_SLOW} OPTIONS ${${options}}
                           EXPECT "TODO ${todo}")
  endforeach()
endfunction()
fsdp_wrongs(steps RANKS 2 MISTAKES 06.1-one-too-many 06.2-rank-0 06.11-unsharded 06.11-on-top 06.12-not-again
            06.12-forward-order 06.13-broadcast 06.16-sum 06.16-rank-0-s-shard)
fsdp_wrongs(hybrid RANKS 4 MISTAKES 06.10-swapped 06.10-whole-world 06.13-wrong-group 06.17-sum 06.17-shard-group)
fsdp_wrongs(serial RANKS 2 SLOW ${slow} MISTAKES 06.14-no-event 06.18-no-event 06.19-no-event)
# On a busy machine the gather that does not wait may overtake even the probe of TODO 06.14.
foreach(mistake 06.15-no-event 06.15-wrong-way-round)
  workshop_wrong_filling(06_fsdp fsdp ${mistake} RANKS 2 SLOW ${slow} OPTIONS ${serial} EXPECT "TODO 06.1[45]")
endforeach()
# With prefetching the gather of the next unit but one destroys what the work reads that it should wait for.
workshop_wrong_filling(06_fsdp fsdp 06.15-no-event RANKS 3 SLOW kernels OPTIONS ${one_step}
                       EXPECT "Found with slow kernels")
# The numbers are right, the traffic is not.
workshop_wrong_filling(06_fsdp fsdp 06.16-all-reduce RANKS 2 OPTIONS ${steps} EXPECT "ncclAllReduce")
# Ranks that split in different orders end up in groups of different sizes, and some wait for ever.
workshop_wrong_filling(06_fsdp fsdp 06.10-different-order RANKS 4 TIMEOUT 10 OPTIONS ${hybrid} EXPECT "did not finish")
