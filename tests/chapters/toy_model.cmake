# A model of a test's own, in toy_model/01_single_gpu/models.h, trained with every strategy: none names a model.
#
# All runs go through the samples in order and start from the same parameters, so each is equal to one process but for the
# order of its sums: n·2⁻²⁴ relative for sums of n = 96 terms, through 16 of them one after the other, as in chapter 07.
# The bound is that chapter's 10⁻⁴.
set(toy_options --layers 7,7 --no-shuffle --model-seed 3 --samples 480 --epochs 2 --optimizer adamw --log-every 0)
foreach(program 02_ddp/ddp 02_ddp/ddp_overlap 03_model_parallel/model_parallel 04_pipeline/pipeline 06_fsdp/zero
        06_fsdp/fsdp 07_3d/train_3d)
  get_filename_component(name ${program} NAME)
  workshop_program(toy_${name} SOURCE ${CMAKE_SOURCE_DIR}/solutions/${program}.cu
                   INCLUDE ${CMAKE_CURRENT_LIST_DIR}/toy_model ${CMAKE_SOURCE_DIR}/solutions
                   OUTPUT ${CMAKE_BINARY_DIR}/toy_model)
  target_compile_options(toy_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_WARNINGS}>)
endforeach()

# toy(name ranks replicas program options…)
function(toy name ranks replicas program)
  math(EXPR rows "96 / ${replicas}")
  same_training(solution.toy.${name} BOUND 1e-4
                EXPECTED 1 $<TARGET_FILE:toy_ddp> ${toy_options} --batch-size 96
                FOUND ${ranks} $<TARGET_FILE:toy_${program}> ${toy_options} --batch-size ${rows} ${ARGN})
endfunction()
toy(ddp 3 3 ddp)
toy(ddp_overlap 2 2 ddp_overlap --bucket-mb 0.0001)
foreach(stage 1 2 3)
  toy(zero.${stage} 2 2 zero --stage ${stage})
endforeach()
toy(fsdp 2 2 fsdp)
toy(fsdp_units 3 3 fsdp --unit-layers 2 --cpu-offload)
toy(model_parallel 3 1 model_parallel)
toy(gpipe 2 1 pipeline --schedule gpipe)
toy(1f1b 4 1 pipeline --micro-batches 8)
toy(interleaved 2 1 pipeline --schedule interleaved --recompute)
toy(train_3d 4 2 train_3d --pp 2 --zero 1)
