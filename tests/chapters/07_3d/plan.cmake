# The planner: the numbers of the ZeRO paper, and memory and traffic of the workshop's own runs.
set(plan $<TARGET_FILE:solution_07_3d_plan>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)
set(expect_status ${CMAKE_SOURCE_DIR}/tools/expect_status)
add_executable(check_plan ${CMAKE_CURRENT_LIST_DIR}/check_plan.cpp ${CMAKE_SOURCE_DIR}/tools/run_record.cpp)
target_include_directories(check_plan PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(check_plan PRIVATE nlohmann_json::nlohmann_json)
target_compile_options(check_plan PRIVATE ${WORKSHOP_WARNINGS})

# ---- Rajbhandari et al., SC 2020, Figure 1: 7.5 billion parameters, 64 GPUs, Adam in mixed precision -----------------
# 16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N, 16Ψ/N
set(zero_row 120.0 31.4 16.6 1.9)
foreach(stage 0 1 2 3)
  list(GET zero_row ${stage} gigabytes)
  workshop_test(solution.07.plan.zero_paper.${stage} LABELS solution
                COMMAND ${expect_status} -e " ${gigabytes} GB [|]" 0 ${plan} --parameters 7.5e9 --precision mixed
                        --optimizer adamw --gpus 64 --dp 64 --zero ${stage})
endforeach()

# ---- planned and measured ------------------------------------------------------------------------------------------
# Four pairs of layers whose inner widths 2 and 4 ranks divide. 100 steps: what is sent once a run, such as stage 3's
# parameters for the record, is 1/300 of what is sent in it.
set(model --layers 24,32,16,32,16,32,24,32,8 --activation gelu --optimizer adamw)
set(states parameters gradients optimizer)
set(all ${states} activations buckets)
# planned(name RANKS n RUN program option … PLAN option … [KINDS kind …]): 8 rows a replica and step in the run.
function(planned name)
  cmake_parse_arguments(arg "" "RANKS;REPLICAS" "RUN;PLAN;KINDS" ${ARGN})
  math(EXPR rows "8 * ${arg_REPLICAS}")
  math(EXPR samples "100 * ${rows}")
  workshop_test(solution.07.plan.measured.${name}.${arg_RANKS} LABELS solution
                COMMAND ${run_then} ${run_then}
                        ${launch} -n ${arg_RANKS} -- ${arg_RUN} ${model} --batch-size 8 --samples ${samples} --log-every 0
                        --record run.jsonl
                        -- ${plan} ${model} --gpus ${arg_RANKS} --global-batch ${rows} ${arg_PLAN} --json plan.json
                        -- $<TARGET_FILE:check_plan> plan.json run.jsonl ${arg_KINDS})
endfunction()
foreach(ranks 2 4)
  planned(ddp RANKS ${ranks} REPLICAS ${ranks} RUN $<TARGET_FILE:solution_02_ddp_ddp>
          PLAN --dp ${ranks} --pp 1 --tp 1 --zero 0 KINDS ${all})
  planned(pipeline RANKS ${ranks} REPLICAS 1 RUN $<TARGET_FILE:solution_04_pipeline_pipeline> --micro-batches 8
          PLAN --dp 1 --pp ${ranks} --tp 1 --zero 0 --micro-batches 8 KINDS ${all})
  planned(tensor_parallel RANKS ${ranks} REPLICAS 1 RUN $<TARGET_FILE:solution_05_tensor_parallel_tensor_parallel>
          PLAN --dp 1 --pp 1 --tp ${ranks} --zero 0 KINDS ${all})
endforeach()
# zero's units have buffers for gradients of activations each, where a plan counts one pair for all: no activations.
# Three ranks do not divide the layers' parameters.
if(TARGET solution_06_fsdp_zero)
  foreach(stage 0 1 2 3)
    planned(zero${stage} RANKS 3 REPLICAS 3 RUN $<TARGET_FILE:solution_06_fsdp_zero> --stage ${stage}
            PLAN --dp 3 --pp 1 --tp 1 --zero ${stage} KINDS ${states} buckets)
  endforeach()
endif()
if(TARGET solution_06_fsdp_fsdp)
  planned(fsdp RANKS 3 REPLICAS 3 RUN $<TARGET_FILE:solution_06_fsdp_fsdp>
          PLAN --dp 3 --pp 1 --tp 1 --zero 3 --prefetch KINDS ${states} buckets)
endif()
# A plan for something else than what has run is found out: AdamW's state is not sharded.
workshop_test(solution.07.plan.measured.another_plan LABELS solution
              COMMAND ${run_then} ${run_then} ${launch} -n 2 -- $<TARGET_FILE:solution_02_ddp_ddp> ${model} --batch-size 8
                      --samples 160 --record run.jsonl
                      -- ${plan} ${model} --gpus 2 --global-batch 16 --dp 2 --zero 1 --json plan.json
                      -- ${expect_status} -e "rank 1, optimizer: 38400 bytes, planned 19200" 1
                         $<TARGET_FILE:check_plan> plan.json run.jsonl ${states})
if(TARGET solution_07_3d_train_3d)
  # planned_3d(dp pp tp zero)
  function(planned_3d dp pp tp zero)
    set(mesh --dp ${dp} --pp ${pp} --tp ${tp} --zero ${zero} --micro-batches 4)
    math(EXPR ranks "${dp} * ${pp} * ${tp}")
    planned(train_3d.${dp}x${pp}x${tp}.zero${zero} RANKS ${ranks} REPLICAS ${dp}
            RUN $<TARGET_FILE:solution_07_3d_train_3d> ${mesh} PLAN ${mesh} KINDS ${all})
  endfunction()
  planned_3d(1 1 1 0)
  planned_3d(3 1 1 1)
  planned_3d(1 4 1 0)
  planned_3d(1 1 4 0)
  planned_3d(2 2 1 0)
  planned_3d(2 2 1 1)
  planned_3d(2 1 2 1)
  planned_3d(1 2 2 0)
  planned_3d(3 2 1 1)
  planned_3d(1 3 2 0)
  planned_3d(2 2 2 0)
  planned_3d(2 2 2 1)
endif()

# ---- ranking -------------------------------------------------------------------------------------------------------
# What fits comes first, then what is faster: of 33.6 million parameters of 16 bytes over two nodes of two GPUs.
foreach(case "80;2 +2 +1 +1 +8 .* fits" "0.2;1 +4 +1 +0 +16 .* fits" "0.1;2 +2 +1 +1 +8 .* too large")
  list(GET case 0 memory)
  list(GET case 1 first)
  workshop_test(solution.07.plan.first_of.${memory}GB LABELS solution
                COMMAND ${expect_status} -e "${first}" -e "and 11 more" 0 ${plan} --width 2048 --depth 8
                        --optimizer adamw --gpus 4 --gpus-per-node 2 --memory ${memory} --rows 1)
endforeach()
# The latency and bandwidth of a link as chapter 00 measures them; 2 rounds of an all-reduce on two ranks.
set(bandwidth_json ${CMAKE_BINARY_DIR}/tests/chapters/07_3d_bandwidth.json)
file(WRITE ${bandwidth_json} "{\"op\": \"all_reduce\", \"ranks\": 2, \"bus_factor\": 1, \"alpha_seconds\": 2e-05, "
     "\"beta_seconds_per_byte\": 1e-09,\n \"measurements\": []}\n")
foreach(link "--node-link;${bandwidth_json}" "--node-latency;10;--node-bandwidth;1")
  list(LENGTH link words)
  # 4 bytes of 10⁸ parameters, all-reduced by two ranks: 20 µs and 4·10⁸ bytes at 10⁹ a second.
  workshop_test(solution.07.plan.link.${words} LABELS solution
                COMMAND ${expect_status} -e "400.0 ms +fits" 0 ${plan} --parameters 1e8 --gpus 2 --zero 1 ${link}
                        --global-batch 2 --peak 1e6)
endforeach()
workshop_test(solution.07.plan.measured_link MEASURES LABELS solution
              COMMAND ${run_then} ${launch} -n 2 -- $<TARGET_FILE:solution_00_collectives_bandwidth> --op send_recv
                      --max-mib 16 --json link.json -- ${plan} --node-link link.json --network-link link.json)

# ---- bad input -----------------------------------------------------------------------------------------------------
set(deep --layers 8,12,8,12,8)
function(bad_plan name message)
  bad_input(solution.07.plan.bad.${name} ${message} RANKS 1 PROGRAM ${plan} ${ARGN})
endfunction()
# A planner needs no ranks; started on several, it says its line once too.
bad_input(solution.07.plan.bad.ranks "--pp is '8'. expected at most 4" RANKS 4 PROGRAM ${plan} ${deep} --pp 8)
bad_plan(product "--dp, --pp and --tp make 6 GPUs. expected --gpus, 8" --dp 3 --pp 2 --tp 1)
bad_plan(multiple "--gpus is '8'. expected a multiple of the given --dp, --pp and --tp" --tp 3)
bad_plan(node "--tp is '4'. expected a divisor of the 2 GPUs of a node" ${deep} --tp 4 --gpus-per-node 2)
bad_plan(pairs "--tp is '2'. expected 1 for 3 layers, which do not make pairs" --layers 8,8,8,8 --dp 4 --pp 1 --tp 2)
bad_plan(inside "--tp is '8'. expected a divisor of the width 12 inside a pair" ${deep} --tp 8)
bad_plan(stages "--pp is '8'. expected at most 4, the model's layers" ${deep} --pp 8)
bad_plan(stages_of_pairs "--pp is '4'. expected at most 2, the model's pairs of layers" ${deep} --dp 1 --pp 4 --tp 2)
bad_plan(batch "--global-batch is '100'. expected a multiple of the 8 replicas" --dp 8 --global-batch 100)
bad_plan(micro_batches "--micro-batches is '3'. expected a divisor of the 128 rows" --dp 8 --micro-batches 3)
bad_plan(zero "--zero is '2'. expected 0 or 1 with --pp" ${deep} --pp 2 --dp 4 --tp 1 --zero 2)
bad_plan(zero_stage "--zero is '4'. expected 0, 1, 2, 3, any" --zero 4)
bad_plan(parameters "--pp is '2'. expected 1 with --parameters" --parameters 1e9 --pp 2)
bad_plan(no_parameters "--parameters is '-1'. expected a number greater than 0" --parameters=-1)
bad_plan(depth "--width is given alone. expected --width and --depth" --width 8)
bad_plan(both "--parameters is given. expected no --width and --depth" --width 8 --depth 2 --parameters 10)
bad_plan(precision "--precision is 'bf16'. expected fp32, mixed" --precision bf16)
bad_plan(overflow "make 1099511627776 GPUs" --dp 1048576 --pp 1048576 --tp 1)
bad_plan(too_many "--pp is .1073741824.. expected a whole number from 1 to" --dp 1 --pp 1073741824 --tp 1)
bad_plan(efficiency "--efficiency is above 1. expected a share" --efficiency 50)
bad_plan(link "--node-link is '/nowhere/link.json'. expected a file that 00_collectives/bandwidth has written"
         --node-link /nowhere/link.json)
bad_plan(json "--json is '/nowhere/plan.json', which cannot be written: No such file" --json /nowhere/plan.json)
bad_plan(training "--batch-size" --batch-size 8)
