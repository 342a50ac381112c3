# Units of 35, 24 and 10 values. Stage 1 gathers after the update, in place; stage 3 before each use, and its gradients
# accumulate in the shards.
set(net --layers 6,5,4,2 --optimizer adamw --max-steps 6)
set(stage1 ${net} --stage 1)
set(stage2 ${net} --stage 2)
set(stage3 ${net} --stage 3 --accumulation-steps 2)
workshop_check(06_fsdp zero RANKS 2 4 OPTIONS ${stage1})
workshop_check(06_fsdp zero RANKS 2 OPTIONS ${stage2})
workshop_check(06_fsdp zero RANKS 2 3 OPTIONS ${stage3})

# zero_wrongs(stage mistake…): each must be traced to its own TODO.
function(zero_wrongs stage)
  foreach(mistake ${ARGN})
    string(REGEX MATCH "^[0-9.]+" todo ${mistake})
    workshop_wrong_filling(06_fsdp zero ${mistake} RANKS 2 OPTIONS ${${stage}} EXPECT "TODO ${todo}")
  endforeach()
endfunction()
zero_wrongs(stage1 06.1-one-too-many 06.2-rank-0 06.3-rank-0 06.3-next-rank 06.3-whole 06.4-never 06.5-rank-0
            06.6-sum 06.6-to-rank-0)
zero_wrongs(stage3 06.4-after-update 06.4-once 06.7-overwritten 06.7-other-way)
# The numbers are right, the traffic is not.
workshop_wrong_filling(06_fsdp zero 06.6-all-reduce RANKS 2 OPTIONS ${stage1} EXPECT "ncclAllReduce")
workshop_wrong_filling(06_fsdp zero 06.5-broadcasts RANKS 2 OPTIONS ${stage1} EXPECT "ncclAllGather")
