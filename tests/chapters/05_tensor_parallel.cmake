# Chapter 05: every number of ranks trains the same network.
#
# P ranks add the same products as one process, in another order. An activation or a gradient is a sum of at most n = 48
# products (the widest layer; a batch has 24 rows): in whatever order, it is off by at most n·2⁻²⁴·M, M being the sum of
# the products' magnitudes. Four layers, forward and backward, are 8 such sums one after the other, so a gradient of two
# runs differs by at most 2·8·n·2⁻²⁴·M = 4.6·10⁻⁵·M, and T = 40 steps of SGD with lr = 0.01 pass 0.4 times that on to the
# parameters. Gradients of a mean over normal data have M ≤ 1 here. Found: 1.2·10⁻⁷. The tests ask for 5·10⁻⁵, of losses,
# parameters and gradients; a wrong term is of the order of 10⁻².
set(bound 5e-5)
set(mlp $<TARGET_FILE:solution_01_single_gpu_mlp>)
set(tensor $<TARGET_FILE:solution_05_tensor_parallel_tensor_parallel>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)

# golden_run(name golden RANKS n PROGRAM command…): the losses and parameters of a golden file, on so many ranks.
function(golden_run name golden)
  cmake_parse_arguments(arg "" "RANKS" "PROGRAM" ${ARGN})
  workshop_test(golden.05.${name}.${arg_RANKS}ranks LABELS golden
                COMMAND ${run_then} ${launch} -n ${arg_RANKS} -- ${arg_PROGRAM} --record run.jsonl
                        -- $<TARGET_FILE:check_golden> ${golden} run.jsonl)
endfunction()

# record_check(name RANKS n PROGRAM command… CHECK program arguments…): a run, and what its record must say.
function(record_check name)
  cmake_parse_arguments(arg "" "RANKS" "PROGRAM;CHECK" ${ARGN})
  list(POP_FRONT arg_CHECK check)
  workshop_test(solution.05.${name}.${arg_RANKS}ranks LABELS solution
                COMMAND ${run_then} ${launch} -n ${arg_RANKS} -- ${arg_PROGRAM} --record run.jsonl
                        -- $<TARGET_FILE:${check}> run.jsonl ${arg_CHECK})
endfunction()

# ---- tensor_parallel -----------------------------------------------------------------------------------------------
foreach(ranks 1 2)
  golden_run(tensor_parallel ${CMAKE_CURRENT_LIST_DIR}/../golden/single_noshuffle.json RANKS ${ranks} PROGRAM ${tensor})
endforeach()
# Two pairs, GELU, a last batch of 8 rows. Only the widths inside the pairs have to be divided: 24 and 48.
set(pairs --layers 12,24,6,48,5 --activation gelu --batch-size 24 --samples 488 --no-shuffle --log-every 0)
set(training --epochs 2 --max-steps 40)
# A step of SGD with lr = 1 leaves value - gradient: equal parameters after one step are equal gradients.
set(gradients --lr 1 --max-steps 1)
foreach(ranks 1 2 3 4 8)
  set(exact BOUND ${bound})
  if(ranks EQUAL 1)
    set(exact "")  # to the last bit
  endif()
  foreach(run training gradients)
    same_training(solution.05.tensor_parallel.${run}.${ranks}ranks ${exact}
                  EXPECTED 1 ${mlp} ${pairs} ${${run}} FOUND ${ranks} ${tensor} ${pairs} ${${run}})
  endforeach()
endforeach()
# AdamW divides a gradient by its own size: with lr = 0.001, a relative error of 10⁻³ in one costs 10⁻⁶ a step, of 21.
same_training(solution.05.tensor_parallel.adamw BOUND ${bound}
              EXPECTED 1 ${mlp} ${pairs} --optimizer adamw --lr 0.001 --activation relu
              FOUND 4 ${tensor} ${pairs} --optimizer adamw --lr 0.001 --activation relu)

# An all-reduce a pair and step each way: 4·batch·(in + out) bytes. 32 steps of 32 rows of 6,4,2; 2 steps of 24 rows.
record_check(ledger.tensor_parallel RANKS 2 PROGRAM ${tensor} CHECK check_ledger all ncclAllReduce 64 32768)
record_check(ledger.tensor_parallel.pairs RANKS 4 PROGRAM ${tensor} ${pairs} --max-steps 2
             CHECK check_ledger all ncclAllReduce 8 5568)
# Parameters: (in + 1)·h/P + h/P·out + out a pair. Activations: the outputs of every layer, with GELU twice but for the
# last, and two gradients as wide as the widest input or output: 32·(2 + 2 + 2·6), 24·(2·6 + 2·6 + 2·12 + 5 + 2·12).
record_check(step.tensor_parallel RANKS 2 PROGRAM ${tensor}
             CHECK check_step parameters=80 gradients=80 optimizer=0 activations=2048 buckets=0)
record_check(step.tensor_parallel.pairs RANKS 4 PROGRAM ${tensor} ${pairs} --epochs 2
             CHECK check_step parameters=1076 gradients=1076 optimizer=0 activations=7392 buckets=0)

foreach(ranks 1 4)
  set(run RANKS ${ranks} PROGRAM ${tensor})
  bad_input(solution.05.bad.tensor_parallel.odd.${ranks} "--layers has 3 layers. expected an even number" ${run}
            --layers 8,8,8,8)
  bad_input(solution.05.bad.tensor_parallel.one.${ranks} "--layers has 1 layer. expected an even number" ${run}
            --layers 8,8)
  bad_input(solution.05.bad.tensor_parallel.unknown.${ranks} "--heads" ${run} --heads 4)
endforeach()
bad_input(solution.05.bad.tensor_parallel.width "--layers has a width of 6 inside a pair. expected a multiple of the 4 ranks"
          RANKS 4 PROGRAM ${tensor} --layers 8,8,8,6,8)

# ---- tensor_parallel_gather ----------------------------------------------------------------------------------------
set(gather $<TARGET_FILE:solution_05_tensor_parallel_tensor_parallel_gather>)
foreach(ranks 1 2)
  golden_run(tensor_parallel_gather ${CMAKE_CURRENT_LIST_DIR}/../golden/single_noshuffle.json RANKS ${ranks}
             PROGRAM ${gather})
endforeach()
# Every width but the input's is a multiple of 2, 3, 4 and 8. Three layers of at most 48 inputs: the same bound.
set(columns --layers 10,24,48,24 --activation gelu --batch-size 24 --samples 488 --no-shuffle --log-every 0)
foreach(ranks 1 2 3 4 8)
  foreach(run training gradients)
    same_training(solution.05.tensor_parallel_gather.${run}.${ranks}ranks BOUND ${bound}
                  EXPECTED 1 ${mlp} ${columns} ${${run}} FOUND ${ranks} ${gather} ${columns} ${${run}})
  endforeach()
endforeach()
# A layer and step: an all-gather of 4·batch·out/P bytes, and a reduce-scatter of 4·batch·in/P, but not for the first.
record_check(ledger.tensor_parallel_gather RANKS 2 PROGRAM ${gather}
             CHECK check_ledger all ncclAllGather 64 12288 all ncclReduceScatter 32 8192)
record_check(ledger.tensor_parallel_gather.layers RANKS 4 PROGRAM ${gather} ${columns} --max-steps 2
             CHECK check_ledger all ncclAllGather 6 4608 all ncclReduceScatter 4 3456)
# Parameters: (in + 1)·out/P a layer. Activations: all outputs, whole; before the activation, this rank's part; and one
# gradient of the widest output, whole and in part: 32·(4 + 2 + 4 + 2), 24·(24 + 48 + 24 + 6 + 12 + 48 + 12).
record_check(step.tensor_parallel_gather RANKS 2 PROGRAM ${gather}
             CHECK check_step parameters=76 gradients=76 optimizer=0 activations=1536 buckets=0)
record_check(step.tensor_parallel_gather.layers RANKS 4 PROGRAM ${gather} ${columns} --epochs 2
             CHECK check_step parameters=2640 gradients=2640 optimizer=0 activations=16704 buckets=0)
foreach(ranks 1 4)
  bad_input(solution.05.bad.tensor_parallel_gather.unknown.${ranks} "--tp" RANKS ${ranks} PROGRAM ${gather} --tp 4)
endforeach()
bad_input(solution.05.bad.tensor_parallel_gather.width "--layers has a layer with 6 outputs. expected a multiple of the 4"
          RANKS 4 PROGRAM ${gather} --layers 8,8,8,6)

# ---- sequence_parallel and attention -------------------------------------------------------------------------------
# What PyTorch computes, on every number of ranks that divides; where it has no file, the run on one rank.
set(sequence $<TARGET_FILE:solution_05_tensor_parallel_sequence_parallel>)
set(attention $<TARGET_FILE:solution_05_tensor_parallel_attention>)
foreach(program attention sequence_parallel)
  set(golden ${CMAKE_CURRENT_LIST_DIR}/05_tensor_parallel/${program}.json)
  file(READ ${golden} text)
  string(JSON length LENGTH "${text}" options command)
  math(EXPR last "${length} - 1")
  set(words "")
  foreach(index RANGE ${last})
    string(JSON word GET "${text}" options command ${index})
    list(APPEND words ${word})
  endforeach()
  foreach(ranks 1 2 4 8)
    golden_run(${program} ${golden} RANKS ${ranks} PROGRAM $<TARGET_FILE:solution_05_tensor_parallel_${program}> ${words})
  endforeach()
endforeach()
set(heads --sequence 5 --width 24 --heads 6 --samples 200 --log-every 0)
set(norms --layers 7,24,6,48,5 --activation relu --batch-size 24 --samples 480 --log-every 0)
foreach(run training gradients)
  same_training(solution.05.attention.${run}.3ranks BOUND ${bound}
                EXPECTED 1 ${attention} ${heads} ${${run}} FOUND 3 ${attention} ${heads} ${${run}})
  same_training(solution.05.sequence_parallel.${run}.3ranks BOUND ${bound}
                EXPECTED 1 ${sequence} ${norms} ${${run}} FOUND 3 ${sequence} ${norms} ${${run}})
endforeach()
# Central differences of the loss.
foreach(ranks 1 2 4)
  workshop_test(solution.05.attention.differences.${ranks}ranks LABELS solution RANKS ${ranks}
                COMMAND ${attention} --gradient-check --sequence 5 --batch-size 2 --max-steps 1)
  workshop_test(solution.05.sequence_parallel.differences.${ranks}ranks LABELS solution RANKS ${ranks}
                COMMAND ${sequence} --gradient-check --layers 7,8,6,8,5 --activation gelu --max-steps 1)
endforeach()

# A pair and step: all-gathers of 4·(batch/P)·(2·in + out) bytes in three calls, reduce-scatters of 4·(batch/P)·(in +
# out) in two. A step: the norms' gradients, 2·in floats a pair. An epoch: its losses.
record_check(ledger.sequence_parallel RANKS 2 PROGRAM ${sequence}
             CHECK check_ledger all ncclAllGather 96 28672 all ncclReduceScatter 64 16384 all ncclAllReduce 32 1536
                   all ncclReduce 1 128)
record_check(ledger.sequence_parallel.pairs RANKS 4 PROGRAM ${sequence} ${pairs} --samples 480 --max-steps 2
             CHECK check_ledger all ncclAllGather 12 2256 all ncclReduceScatter 8 1392 all ncclAllReduce 2 288
                   all ncclReduce 1 8)
# Two all-reduces a step of 4·batch·sequence·width bytes, however many heads.
record_check(ledger.attention RANKS 2 PROGRAM ${attention} CHECK check_ledger all ncclAllReduce 64 1048576)
# The README's formulas: with R = 24 and r = 6, 6·(12 + 2 + 6) + 2·24·6 and 6·(6 + 2 + 5) + 2·24·12 floats are kept,
# and 2·24·12 + 2·6·12 + 24·12 worked with.
record_check(step.sequence_parallel RANKS 4 PROGRAM ${sequence} ${pairs} --samples 480 --epochs 2
             CHECK check_step parameters=1220 gradients=1220 optimizer=0 activations=8280 buckets=0)
record_check(step.attention RANKS 2 PROGRAM ${attention} --epochs 2
             CHECK check_step parameters=2208 gradients=2208 optimizer=0 activations=149504 buckets=0)
# Six pairs of width 64 on 4 ranks: what lies between the pairs weighs, and sequence parallelism keeps a quarter of it.
set(deep --layers 64,64,64,64,64,64,64,64,64,64,64,64,64 --max-steps 2)
record_check(memory.tensor_parallel RANKS 4 PROGRAM ${tensor} ${deep} CHECK check_step activations=77824)
record_check(memory.sequence_parallel RANKS 4 PROGRAM ${sequence} ${deep} CHECK check_step activations=59776)

foreach(ranks 1 4)
  bad_input(solution.05.bad.attention.width.${ranks} "--width is '18'. expected a multiple of the 4 heads"
            RANKS ${ranks} PROGRAM ${attention} --width 18)
  bad_input(solution.05.bad.attention.wide.${ranks} "4 times --width times --width . 1 is more than 2147483647"
            RANKS ${ranks} PROGRAM ${attention} --width 32768)
  bad_input(solution.05.bad.attention.long.${ranks} "--heads times --sequence times --sequence is more than"
            RANKS ${ranks} PROGRAM ${attention} --sequence 65536 --samples 1)
  bad_input(solution.05.bad.attention.zero.${ranks} "--heads is '0'. expected a whole number of at least 1"
            RANKS ${ranks} PROGRAM ${attention} --heads 0)
  bad_input(solution.05.bad.attention.layers.${ranks} "--layers" RANKS ${ranks} PROGRAM ${attention} --layers 6,4,2)
  bad_input(solution.05.bad.sequence_parallel.odd.${ranks} "--layers has 3 layers. expected an even number"
            RANKS ${ranks} PROGRAM ${sequence} --layers 8,8,8,8)
endforeach()
bad_input(solution.05.bad.attention.heads "--heads is '6'. expected a multiple of the 4 ranks" RANKS 4
          PROGRAM ${attention} --heads 6 --width 24)
bad_input(solution.05.bad.sequence_parallel.width "--layers has a width of 6 inside a pair. expected a multiple of the 4"
          RANKS 4 PROGRAM ${sequence} --layers 8,6,8)
bad_input(solution.05.bad.sequence_parallel.batch "--batch-size is '30'. expected a multiple of the 4 ranks" RANKS 4
          PROGRAM ${sequence} --layers 8,8,8 --batch-size 30)
bad_input(solution.05.bad.sequence_parallel.samples "--samples is '66', which leaves 2 for the last batch. expected a mul"
          RANKS 4 PROGRAM ${sequence} --layers 8,8,8 --samples 66)
