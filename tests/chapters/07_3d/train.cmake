# Chapter 07, train_3d: every mesh of ranks trains what one process trains.
#
# The D·B rows of a step and the terms of every product are those of one process, added up in another order. A sum of at
# most n = 48 products (a step has 48 rows, the widest layer 24 inputs) is off by at most n·2⁻²⁴·X in whatever order, X
# being the sum of their magnitudes. Eight layers, forward and backward, are 16 such sums one after the other, so a loss
# or a gradient of two runs differs by at most 2·16·n·2⁻²⁴·X = 9.2·10⁻⁵·X, and T = 4 steps of SGD with lr = 0.1 pass 0.4
# times that on to a parameter. Gradients of a mean over normal data have X ≤ 1 here. AdamW divides a gradient by its
# own size: with lr = 0.001, a relative error of 2 % costs 2·10⁻⁵ a step. So the tests ask for 10⁻⁴; a wrong group costs
# 10⁻² and more. Found: 1.2·10⁻⁷.
set(bound 1e-4)
set(train_3d $<TARGET_FILE:solution_07_3d_train_3d>)
set(ddp $<TARGET_FILE:solution_02_ddp_ddp>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)
add_executable(check_mesh ${CMAKE_CURRENT_LIST_DIR}/check_mesh.cpp)
target_link_libraries(check_mesh PRIVATE nlohmann_json::nlohmann_json)
target_compile_options(check_mesh PRIVATE ${WORKSHOP_WARNINGS})

# ---- every mesh: equal to one process; the ledger of every group and the memory of every kind, as in the README -----
# Four pairs of layers, whose inner widths 1, 2, 3, 4, 6 and 8 ranks divide.
set(network --layers 6,24,5,24,4,24,7,24,3 --activation gelu --samples 960 --log-every 0)
foreach(ranks 1 2 4 6 8)
  workshop_test(solution.07.every_mesh.${ranks} LABELS solution TIMEOUT 180
                COMMAND ${CMAKE_CURRENT_LIST_DIR}/every_mesh ${ranks} 48 ${ddp} ${train_3d}
                        $<TARGET_FILE:compare_training> ${bound} $<TARGET_FILE:check_mesh> $<TARGET_FILE:check_step>
                        ${network} --max-steps 4)
endforeach()
# The other schedules, twice as many parts as stages, several epochs.
set(cube --dp 2 --pp 2 --tp 2 --batch-size 24)
foreach(schedule gpipe interleaved)
  same_training(solution.07.${schedule} BOUND ${bound} EXPECTED 1 ${ddp} ${network} --batch-size 48 --epochs 2
                FOUND 8 ${train_3d} ${network} ${cube} --epochs 2 --schedule ${schedule})
  workshop_test(solution.07.mesh.${schedule} LABELS solution
                COMMAND ${run_then} ${run_then} ${launch} -n 8 -- ${train_3d} ${network} ${cube} --epochs 2 --zero 1
                        --schedule ${schedule} --record run.jsonl -- $<TARGET_FILE:check_mesh> run.jsonl
                        -- $<TARGET_FILE:check_step> run.jsonl)
endforeach()
# 190 samples: replicas of 95, whose last batch has 3 rows for 4 micro-batches, one of which has none.
set(short --layers 6,24,5,24,3 --activation relu --samples 190 --epochs 2 --lr 0.1 --log-every 0)
same_training(solution.07.empty_micro_batch BOUND ${bound} EXPECTED 2 ${ddp} ${short} --batch-size 92
              FOUND 8 ${train_3d} ${short} --pp 2 --tp 2 --batch-size 92)

# ---- to the last bit -----------------------------------------------------------------------------------------------
# With one dimension alone, this is the program of the chapter that it comes from.
set(in_order ${network} --no-shuffle --max-steps 12 --batch-size 24)
set(overlap $<TARGET_FILE:solution_02_ddp_ddp_overlap>)
set(pipeline $<TARGET_FILE:solution_04_pipeline_pipeline>)
set(tensor $<TARGET_FILE:solution_05_tensor_parallel_tensor_parallel>)
same_training(solution.07.is_ddp EXPECTED 2 ${overlap} ${network} FOUND 2 ${train_3d} ${network})
same_training(solution.07.is_pipeline EXPECTED 4 ${pipeline} ${in_order} FOUND 4 ${train_3d} ${in_order} --pp 4)
same_training(solution.07.is_tensor_parallel EXPECTED 3 ${tensor} ${in_order} FOUND 3 ${train_3d} ${in_order} --tp 3)
same_training(solution.07.is_one_process EXPECTED 1 ${ddp} ${network} FOUND 3 ${train_3d} ${network} --pp 3
              --micro-batches 1)
# A sum over two replicas has but one order, whoever forms it: ZeRO changes nothing.
foreach(optimizer sgd adamw)
  set(run 8 ${train_3d} ${network} ${cube} --optimizer ${optimizer})
  same_training(solution.07.zero.${optimizer} EXPECTED ${run} FOUND ${run} --zero 1)
endforeach()

# ---- PyTorch's losses ----------------------------------------------------------------------------------------------
# golden_07(name golden RANKS option…)
function(golden_07 name golden ranks)
  workshop_test(golden.07.${name} LABELS golden
                COMMAND ${run_then} ${launch} -n ${ranks} -- ${train_3d} ${ARGN} --record run.jsonl
                        -- $<TARGET_FILE:check_golden> ${CMAKE_SOURCE_DIR}/tests/golden/${golden}.json run.jsonl)
endfunction()
golden_07(data ddp2_default 2)
golden_07(pipeline ddp1_default 2 --pp 2)
golden_07(tensor ddp1_default 2 --tp 2)
golden_07(data_pipeline ddp2_default 4 --pp 2)
golden_07(data_tensor ddp2_default 4 --tp 2 --zero 1)

# ---- overlap -------------------------------------------------------------------------------------------------------
# On every rank the average of a bucket is under way while the last backward still works on the layers below.
workshop_test(solution.07.overlap_is_real LABELS solution ENVIRONMENT WORKSHOP_SLOW=kernels
              COMMAND ${run_then} ${launch} -n 4 -- ${train_3d} --layers 6,5,4,3,2 --pp 2 --micro-batches 2
                      --bucket-mb 0.00003 --max-steps 3 --timeline timeline.json
                      -- $<TARGET_FILE:check_overlap> timeline.json)

# ---- nodes ---------------------------------------------------------------------------------------------------------
# nodes_07(result RANKS PER_NODE option…): the command that trains on nodes of so many ranks.
function(nodes_07 result ranks per_node)
  set(${result} ${launch} -n ${ranks} -t 20 -- ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/on_nodes ${per_node} ${train_3d}
                ${ARGN} PARENT_SCOPE)
endfunction()
set(one_line ${CMAKE_SOURCE_DIR}/tests/chapters/one_line)
set(one_machine "ranks of nodes that are one machine would meet on its GPUs unawares")
nodes_07(run 4 2 --tp 4 --layers 6,4,2)
workshop_test(solution.07.nodes.refused LABELS solution CPU_ONLY ${one_machine}
              COMMAND ${one_line} 2 "^error: --tp is '4', which puts ranks 0 to 3, a tensor group, on several nodes" ${run})
# Rank 0's own group is on its node; that of ranks 2 and 3 is not.
nodes_07(run 6 3 --tp 2)
workshop_test(solution.07.nodes.refused_elsewhere LABELS solution CPU_ONLY ${one_machine}
              COMMAND ${one_line} 2 "^error: --tp is '2', which puts ranks 2 to 3, a tensor group, on several" ${run})
nodes_07(run 4 2 --tp 4 --layers 6,4,2 --allow-tp-across-nodes)
workshop_test(solution.07.nodes.allowed LABELS solution CPU_ONLY ${one_machine} COMMAND ${run})
nodes_07(run 4 2 --tp 2 --pp 2 --layers 6,4,2,4,2)
workshop_test(solution.07.nodes.within LABELS solution CPU_ONLY ${one_machine} COMMAND ${run})

# ---- bad input -----------------------------------------------------------------------------------------------------
foreach(ranks 1 4)
  set(bad solution.07.bad.${ranks})
  set(run RANKS ${ranks} PROGRAM ${train_3d} --layers 8,8,8,8,8)
  bad_input(${bad}.product "--dp is '3', --pp is '1' and --tp is '2'. expected a product of ${ranks} rank" ${run}
            --dp 3 --tp 2)
  bad_input(${bad}.divisor "--pp is '3' and --tp is '1', which makes 3 ranks a replica. expected a divisor of the ${ranks}"
            ${run} --pp 3)
  bad_input(${bad}.dp "--dp is '0'. expected a whole number of at least 1" ${run} --dp 0)
  bad_input(${bad}.large "--pp is '1000000' and --tp is '1000000', which makes 1000000000000 ranks" ${run} --pp 1000000
            --tp 1000000)
  bad_input(${bad}.zero "--zero is '2'. expected a whole number from 0 to 1" ${run} --zero 2)
  bad_input(${bad}.micro_batches "--micro-batches is '5'. expected a divisor of --batch-size, 32" ${run} --micro-batches 5)
  bad_input(${bad}.chunks "--chunks is '2'. expected 1 unless --schedule is interleaved" ${run} --chunks 2)
  bad_input(${bad}.parts "--pp is '1', for stages of 8 out of 4 layers in --layers. expected at least 8 layers" ${run}
            --schedule interleaved --chunks 8)
  bad_input(${bad}.schedule "--schedule is 'zb'. expected gpipe, 1f1b, interleaved" ${run} --schedule zb)
endforeach()
set(run RANKS 4 PROGRAM ${train_3d})
bad_input(solution.07.bad.layers "--pp is '4', for stages of 1 out of 2 layers in --layers. expected at least 4 layers" ${run}
          --pp 4)
bad_input(solution.07.bad.pairs "--pp is '2', for stages of 1 out of 1 pairs of layers in --layers. expected at least 2 p"
          ${run} --pp 2 --tp 2)
bad_input(solution.07.bad.odd "--layers has 3 layers. expected an even number, in pairs" ${run} --layers 8,8,8,8 --tp 2)
bad_input(solution.07.bad.width "--layers has a width of 6 inside a pair. expected a multiple of the 4 ranks" ${run}
          --layers 8,6,8 --tp 4)
bad_input(solution.07.bad.interleaved "--micro-batches is '2'. expected a multiple of the 4 stages" ${run} --pp 4
          --layers 4,4,4,4,4,4,4,4,4 --schedule interleaved --micro-batches 2)
