# Checkpoints of all chapters: common/checkpoint.h.
set(checkpoint_tests ${CMAKE_SOURCE_DIR}/tests/chapters/06_fsdp)
set(solutions ${CMAKE_BINARY_DIR}/solutions)
add_executable(damage_file ${checkpoint_tests}/damage_file.cpp)
target_compile_options(damage_file PRIVATE ${WORKSHOP_WARNINGS})

# ---- a run that is stopped and resumed becomes the same to the last bit ----------------------------------------------
# Stopped within the second epoch, where the order of the samples depends on the random state, and with AdamW, whose
# running means have to be there again.
function(resumes name ranks program)
  workshop_test(solution.06.resume.${name} LABELS solution TIMEOUT 120
                COMMAND ${checkpoint_tests}/check_resume $<TARGET_FILE:compare_training> 5 9
                        ${ranks} ${solutions}/${program} --optimizer adamw --samples 96 --epochs 3 --log-every 0
                        ${ARGN})
endfunction()
set(pairs --layers 6,8,5,8,3)
resumes(mlp 1 01_single_gpu/mlp --batch-size 32)
resumes(ddp 3 02_ddp/ddp --batch-size 8 --validation-samples 10)
resumes(ddp_accumulation 2 02_ddp/ddp --batch-size 4 --accumulation-steps 4)
resumes(ddp_overlap 2 02_ddp/ddp_overlap --batch-size 16)
resumes(model_parallel 2 03_model_parallel/model_parallel --batch-size 32)
resumes(pipeline 2 04_pipeline/pipeline --batch-size 32 --schedule interleaved ${pairs})
resumes(tensor_parallel 4 05_tensor_parallel/tensor_parallel --shuffle --batch-size 32 ${pairs})
resumes(tensor_parallel_gather 2 05_tensor_parallel/tensor_parallel_gather --batch-size 32)
resumes(sequence_parallel 2 05_tensor_parallel/sequence_parallel --batch-size 32)
workshop_test(solution.06.resume.attention LABELS solution TIMEOUT 120
              COMMAND ${checkpoint_tests}/check_resume $<TARGET_FILE:compare_training> 3 5
                      2 ${solutions}/05_tensor_parallel/attention --optimizer adamw --samples 64 --epochs 3)
foreach(stage 0 1 2 3)
  resumes(zero_${stage} 3 06_fsdp/zero --batch-size 8 --stage ${stage})
endforeach()
resumes(fsdp 4 06_fsdp/fsdp --batch-size 8 --unit-layers 2 ${pairs})
resumes(fsdp_hybrid 4 06_fsdp/fsdp --batch-size 8 --hybrid 2 --checkpoint-format full)
resumes(fsdp_offload 2 06_fsdp/fsdp --batch-size 16 --cpu-offload)
resumes(train_3d 8 07_3d/train_3d --batch-size 16 --dp 2 --pp 2 --tp 2 --zero 1 ${pairs})

# ---- saved by one strategy, loaded by another ------------------------------------------------------------------------
# What is loaded is the same to the last bit. What follows is not, because the sums have another order; AdamW divides
# by the gradients' own size, so rounding errors do not stay below a bound on the gradients. A state that was lost or
# mixed up would change each parameter by about lr = 10⁻² a step; found: 10⁻⁷.
set(matrix ${checkpoint_tests}/checkpoint_matrix ${solutions} $<TARGET_FILE:compare_training> 1e-5)
workshop_test(solution.06.checkpoint_matrix LABELS solution TIMEOUT 900 COMMAND ${matrix} ring)
workshop_test(soak.checkpoint_matrix LABELS soak TIMEOUT 7200 COMMAND ${matrix} all)

# ---- killed at any moment --------------------------------------------------------------------------------------------
set(kills ${checkpoint_tests}/check_kills ${solutions} $<TARGET_FILE:compare_training>)
workshop_test(solution.06.kills LABELS solution TIMEOUT 300 COMMAND ${kills} 4 2 06_fsdp/fsdp --batch-size 16)
workshop_test(soak.kills.fsdp LABELS soak TIMEOUT 1800 COMMAND ${kills} 50 2 06_fsdp/fsdp --batch-size 16)
workshop_test(soak.kills.ddp LABELS soak TIMEOUT 1800
              COMMAND ${kills} 50 3 02_ddp/ddp --batch-size 8 --validation-samples 96)

# ---- damaged files ---------------------------------------------------------------------------------------------------
set(damage ${checkpoint_tests}/check_damage ${solutions} $<TARGET_FILE:damage_file>)
workshop_test(solution.06.damage LABELS solution TIMEOUT 300 COMMAND ${damage} 32)
workshop_test(soak.damage LABELS soak TIMEOUT 1800 COMMAND ${damage} 200)
set_tests_properties(solution.06.kills soak.kills.fsdp soak.kills.ddp PROPERTIES PROCESSORS 2)

# ---- bad input -------------------------------------------------------------------------------------------------------
foreach(ranks 1 4)
  set(fsdp RANKS ${ranks} PROGRAM ${solutions}/06_fsdp/fsdp)
  set(bad solution.06.bad.checkpoints.${ranks})
  bad_input(${bad}.resume "--resume is 'nowhere'. there is no checkpoint" ${fsdp} --resume nowhere)
  bad_input(${bad}.folder "/proc/saved: No such file or directory" ${fsdp} --checkpoints /proc/saved)
  bad_input(${bad}.save_every "--save-every needs a folder to save to: --checkpoints" ${fsdp} --save-every 5)
  bad_input(${bad}.too_large "--layers has 2.31 parameters or more" ${fsdp} --layers 65537,65536)
  bad_input(${bad}.keep "--keep is '-1'. expected a whole number of at least 0" ${fsdp} --keep -1)
  bad_input(${bad}.format "--checkpoint-format is 'zip'. expected full, sharded" ${fsdp} --checkpoint-format zip)
endforeach()
workshop_test(solution.06.refused_checkpoints LABELS solution COMMAND ${checkpoint_tests}/check_refusals ${solutions})
