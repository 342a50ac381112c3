# Chapter 06, fsdp: every mode trains what ddp trains.
#
# The ranks add up the same gradients as in ddp, in another order at most. On one rank there is nothing to add, a sum of
# two has one order, and all else is the same arithmetic on the same bits, on the host too: there not a bit differs. On
# more ranks a mean of N ≤ 8 values is off by at most N·2⁻²⁴·M, M being the largest of them, in whatever order, so two
# gradients differ by at most 2·N·2⁻²⁴·M = 10⁻⁶·M; with hybrid sharding the mean is one of means, with accumulation one
# of sums of means: two more roundings each. T = 12 steps of SGD with lr = 0.01 pass 0.12 times that on to the parameters,
# and M < 10 for normal data: 2·10⁻⁶. AdamW divides a gradient by its own size: where that is at least M/1000, a relative
# error of 10⁻³ costs at most 2·10⁻³·lr a step, with lr = 0.001 2.4·10⁻⁵ in 12 steps. The tests ask for 5·10⁻⁵ and find
# 3·10⁻⁸; an update with a shard of another rank costs 10⁻³ and more.
set(bound 5e-5)
set(ddp $<TARGET_FILE:solution_02_ddp_ddp>)
set(fsdp $<TARGET_FILE:solution_06_fsdp_fsdp>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)

# Units of 88, 144, 117 and 50 values, or of 232 and 167: 8 divides the first two and the 232, 3 the second and the
# third, 2 all but the 117 and the 167. Samples that no number of ranks but 1 and 2 divides.
set(net --layers 7,11,12,9,5 --activation gelu --samples 250 --batch-size 6 --epochs 3 --max-steps 12 --log-every 0)
set(sgd ${net})
set(adamw ${net} --optimizer adamw --lr 0.001)
# fsdp_equals_ddp(name optimizer RANKS n… OPTIONS … BOTH …): with BOTH, options of both programs.
function(fsdp_equals_ddp name optimizer)
  cmake_parse_arguments(arg "" "" "RANKS;OPTIONS;BOTH" ${ARGN})
  foreach(ranks ${arg_RANKS})
    set(allowed BOUND ${bound})
    if(ranks LESS 3 AND NOT arg_BOTH)
      set(allowed)
    endif()
    set(run ${${optimizer}} ${arg_BOTH})
    same_training(solution.06.fsdp.${name}.${optimizer}.${ranks}ranks ${allowed}
                  EXPECTED ${ranks} ${ddp} ${run} FOUND ${ranks} ${fsdp} ${run} ${arg_OPTIONS})
  endforeach()
endfunction()
fsdp_equals_ddp(equals_ddp adamw RANKS 1 2 3 4 8)
fsdp_equals_ddp(equals_ddp sgd RANKS 3)
fsdp_equals_ddp(units_of_two adamw RANKS 2 3 OPTIONS --unit-layers 2)
fsdp_equals_ddp(one_unit adamw RANKS 2 OPTIONS --unit-layers 9)
fsdp_equals_ddp(no_reshard adamw RANKS 2 3 OPTIONS --no-reshard-after-forward)
fsdp_equals_ddp(no_prefetch adamw RANKS 2 OPTIONS --no-prefetch)
fsdp_equals_ddp(no_overlap adamw RANKS 3 OPTIONS --no-reshard-after-forward --no-prefetch)
fsdp_equals_ddp(hybrid2 adamw RANKS 4 8 OPTIONS --hybrid 2)
fsdp_equals_ddp(hybrid1 adamw RANKS 3 OPTIONS --hybrid 1)
fsdp_equals_ddp(offload adamw RANKS 1 2 3 OPTIONS --cpu-offload)
fsdp_equals_ddp(offload sgd RANKS 2 OPTIONS --cpu-offload --no-reshard-after-forward)
fsdp_equals_ddp(accumulation adamw RANKS 2 3 BOTH --accumulation-steps 3)
fsdp_equals_ddp(everything adamw RANKS 4 BOTH --accumulation-steps 3
                OPTIONS --cpu-offload --hybrid 2 --unit-layers 2 --no-reshard-after-forward)
# All modes together with each other, 96 runs on one rank and 384 on eight: 2 optimizers, 1 and 3 batches a step.
foreach(ranks 1 2 3 4 8)
  workshop_test(solution.06.fsdp.every_mode.${ranks}ranks LABELS solution soak TIMEOUT 1800
                COMMAND ${CMAKE_CURRENT_LIST_DIR}/every_mode $<TARGET_FILE:compare_training> ${bound} ${ranks} ${ddp}
                        ${fsdp})
endforeach()

# ---- PyTorch's DistributedDataParallel -----------------------------------------------------------------------------
foreach(golden ddp2_default ddp3_uneven ddp4_adamw)
  golden_test(06.fsdp.${golden} solution_06_fsdp_fsdp ${CMAKE_SOURCE_DIR}/tests/golden/${golden}.json)
endforeach()

# ---- what a step sends and holds, as in the README -----------------------------------------------------------------
# plan_units(WIDTHS … LAYERS n SHARDS n): cuts widths into units of so many layers and these into shards. Sets `units`,
# `shard` (the values of a rank's shards), `padded` (of all units) and `largest` (of the largest one, padded).
function(plan_units)
  cmake_parse_arguments(arg "" "LAYERS;SHARDS" "WIDTHS" ${ARGN})
  list(POP_FRONT arg_WIDTHS in)
  list(LENGTH arg_WIDTHS left)
  foreach(result units shard padded largest count layers)
    set(${result} 0)
  endforeach()
  foreach(out ${arg_WIDTHS})
    math(EXPR count "${count} + (${in} + 1) * ${out}")
    math(EXPR layers "${layers} + 1")
    math(EXPR left "${left} - 1")
    set(in ${out})
    if(layers LESS arg_LAYERS AND left GREATER 0)
      continue()
    endif()
    math(EXPR units "${units} + 1")
    math(EXPR part "(${count} + ${arg_SHARDS} - 1) / ${arg_SHARDS}")
    math(EXPR whole "${part} * ${arg_SHARDS}")
    math(EXPR shard "${shard} + ${part}")
    math(EXPR padded "${padded} + ${whole}")
    if(whole GREATER largest)
      set(largest ${whole})
    endif()
    set(count 0)
    set(layers 0)
  endforeach()
  foreach(result units shard padded largest)
    set(${result} ${${result}} PARENT_SCOPE)
  endforeach()
endfunction()

# fsdp_step(name RANKS n WIDTHS … [LAYERS n] [HYBRID n] [BATCHES n] [NO_RESHARD] [NO_PREFETCH] [OFFLOAD]): four steps of
# so many batches, with AdamW. Every number of the ledger and every kind of memory is exactly the README's formula, and
# no step allocates memory or waits.
function(fsdp_step name)
  cmake_parse_arguments(arg "NO_RESHARD;NO_PREFETCH;OFFLOAD" "RANKS;LAYERS;HYBRID;BATCHES" "WIDTHS" ${ARGN})
  set(shards ${arg_RANKS})
  set(batches 1)
  set(alive 2)
  string(REPLACE ";" "," widths "${arg_WIDTHS}")
  set(options --layers ${widths} --optimizer adamw --max-steps 4)
  if(NOT arg_LAYERS)
    set(arg_LAYERS 1)
  endif()
  list(APPEND options --unit-layers ${arg_LAYERS})
  if(arg_HYBRID)
    set(shards ${arg_HYBRID})
    list(APPEND options --hybrid ${shards})
  endif()
  if(arg_BATCHES)
    set(batches ${arg_BATCHES})
    list(APPEND options --accumulation-steps ${batches})
  endif()
  plan_units(WIDTHS ${arg_WIDTHS} LAYERS ${arg_LAYERS} SHARDS ${shards})

  # Gathered once or twice a batch, reduced once a batch; over the replicas, once a step. All counts are those of shards.
  math(EXPR reduces "4 * ${batches} * ${units}")
  math(EXPR reduced "4 * ${batches} * 4 * ${shard}")
  math(EXPR gathers "2 * ${reduces}")
  math(EXPR gathered "2 * ${reduced}")
  math(EXPR sums "4 * ${units} + 1")
  math(EXPR summed "4 * 4 * ${shard} + 16")  # of gradients, and of the losses of four steps
  if(shards EQUAL arg_RANKS)
    set(sums 1)
    set(summed 16)
  endif()
  # At most so many gathered units and gradients of units at a time.
  if(arg_NO_PREFETCH)
    list(APPEND options --no-prefetch)
    set(alive 1)
  endif()
  math(EXPR buckets "4 * 2 * ${alive} * ${largest}")
  if(arg_NO_RESHARD)
    list(APPEND options --no-reshard-after-forward)
    set(gathers ${reduces})
    set(gathered ${reduced})
    math(EXPR buckets "4 * (${padded} + ${alive} * ${largest})")
  endif()
  math(EXPR kept "4 * ${shard}")
  math(EXPR state "8 * ${shard}")
  set(memory parameters=${kept} gradients=${kept} optimizer=${state} host=0)
  if(arg_OFFLOAD)
    list(APPEND options --cpu-offload)
    math(EXPR host "16 * ${shard}")
    set(memory parameters=0 gradients=0 optimizer=0 host=${host})
  endif()

  set(run ${launch} -n ${arg_RANKS} -- ${fsdp} ${options} --record run.jsonl)
  set(ledger all ncclAllGather ${gathers} ${gathered} all ncclReduceScatter ${reduces} ${reduced}
      all ncclAllReduce ${sums} ${summed})
  workshop_test(solution.06.fsdp.step.${name}.${arg_RANKS}ranks LABELS solution
                COMMAND ${run_then} ${run_then} ${run} -- $<TARGET_FILE:check_ledger> run.jsonl ${ledger}
                        -- $<TARGET_FILE:check_step> run.jsonl ${memory} buckets=${buckets})
endfunction()
# Units of 40·41 = 1,640 values, which 1, 2, 4 and 8 divide: 16Ψ/N and four units.
foreach(ranks 1 2 4 8)
  fsdp_step(even RANKS ${ranks} WIDTHS 40 40 40 40 40)
endforeach()
set(uneven WIDTHS 7 11 12 9 5)
fsdp_step(uneven RANKS 3 ${uneven})
fsdp_step(units_of_two RANKS 3 ${uneven} LAYERS 2)
fsdp_step(units_of_three RANKS 2 ${uneven} LAYERS 3)
fsdp_step(no_reshard RANKS 3 ${uneven} NO_RESHARD)
fsdp_step(no_prefetch RANKS 3 ${uneven} NO_PREFETCH)
fsdp_step(hybrid RANKS 4 ${uneven} HYBRID 2 BATCHES 2)
fsdp_step(replicas_only RANKS 3 ${uneven} HYBRID 1)
fsdp_step(offload RANKS 3 ${uneven} OFFLOAD BATCHES 2)
fsdp_step(everything RANKS 4 ${uneven} LAYERS 2 HYBRID 2 BATCHES 2 NO_RESHARD NO_PREFETCH OFFLOAD)

# ---- communication behind the work ---------------------------------------------------------------------------------
add_executable(check_prefetch ${CMAKE_CURRENT_LIST_DIR}/check_prefetch.cpp)
target_link_libraries(check_prefetch PRIVATE nlohmann_json::nlohmann_json)
target_compile_options(check_prefetch PRIVATE ${WORKSHOP_WARNINGS})
# Four units of two layers. A gather and a reduction take 5 ms each; a forward pass 6, a backward pass 8.
set(slow_net --layers 8,8,8,8,8,8,8,8,8 --unit-layers 2 --activation gelu --max-steps 5)
foreach(mode prefetch no-prefetch)
  foreach(reshard reshard no-reshard)
    workshop_test(solution.06.fsdp.schedule.${mode}.${reshard} MEASURES LABELS solution
                  ENVIRONMENT WORKSHOP_SLOW=kernels,collectives
                  COMMAND ${run_then} ${launch} -n 2 -- ${fsdp} ${slow_net} --${mode} --${reshard}-after-forward
                          --timeline timeline.json -- $<TARGET_FILE:check_prefetch> timeline.json ${mode})
  endforeach()
endforeach()

# ---- bad input -----------------------------------------------------------------------------------------------------
foreach(ranks 1 4)
  set(run RANKS ${ranks} PROGRAM ${fsdp})
  bad_input(solution.06.fsdp.bad.hybrid0.${ranks} "--hybrid is '0'. expected a whole number of at least 1" ${run}
            --hybrid 0)
  bad_input(solution.06.fsdp.bad.hybrid3.${ranks} "--hybrid is '3'. expected a number that divides the ${ranks} rank"
            ${run} --hybrid 3)
  bad_input(solution.06.fsdp.bad.units.${ranks} "--unit-layers is '0'. expected a whole number of at least 1" ${run}
            --unit-layers 0)
  bad_input(solution.06.fsdp.bad.accumulation.${ranks} "--accumulation-steps is '0'. expected" ${run}
            --accumulation-steps 0)
  bad_input(solution.06.fsdp.bad.unknown.${ranks} "--stage" ${run} --stage 3)
endforeach()
