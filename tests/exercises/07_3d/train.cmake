# 2 x 2 x 2, and each pair of dimensions. Stages and their shares are equally large here, so that wrong groups train
# too, and what they train is compared.
set(net --layers 8,8,8,8,8 --activation gelu --batch-size 8 --micro-batches 2)
workshop_check(07_3d train_3d RANKS 1 2 OPTIONS ${net} --max-steps 3)
workshop_check(07_3d train_3d RANKS 4 OPTIONS ${net} --max-steps 6 --pp 2)
workshop_check(07_3d train_3d RANKS 4 OPTIONS ${net} --max-steps 6 --tp 2 --zero 1 --optimizer adamw)
workshop_check(07_3d train_3d RANKS 8 OPTIONS ${net} --max-steps 6 --pp 2 --tp 2)
workshop_check(07_3d train_3d RANKS 8 SLOW kernels collectives
               OPTIONS ${net} --max-steps 1 --pp 2 --tp 2 --zero 1 --schedule interleaved --chunks 1)

# wrong_mesh(mistake [RANKS n] [EXPECT regex] OPTIONS …): on four ranks, and traced to its own TODO, unless it says
# otherwise.
function(wrong_mesh mistake)
  cmake_parse_arguments(arg "" "EXPECT;RANKS" "OPTIONS" ${ARGN})
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  if(NOT arg_EXPECT)
    set(arg_EXPECT "TODO ${todo}")
  endif()
  if(NOT arg_RANKS)
    set(arg_RANKS 4)
  endif()
  workshop_wrong_filling(07_3d train_3d ${mistake} RANKS ${arg_RANKS} TIMEOUT 15 EXPECT ${arg_EXPECT}
                         OPTIONS ${net} --max-steps 3 ${arg_OPTIONS})
endfunction()

# Wrong groups are refused before they hang. Whichever rank finds it first ends the others.
wrong_mesh(07.1-swapped OPTIONS --tp 2 EXPECT "my coordinates, pipeline 0, .* are those of rank [12]: see TODO 07.1")
foreach(mistake 07.2-strided 07.2-key-reversed)
  wrong_mesh(${mistake} OPTIONS --tp 2 EXPECT "my tensor group is made of the ranks .* expected .* see TODO 07.2")
endforeach()
foreach(mistake 07.3-pipeline-neighbours 07.3-whole-world)
  wrong_mesh(${mistake} OPTIONS --pp 2 EXPECT "my data group is made of the ranks .* expected .* see TODO 07.3")
endforeach()
foreach(mistake 07.4-all-replicas 07.4-key-reversed)
  wrong_mesh(${mistake} OPTIONS --pp 2 EXPECT "my pipeline group is made of the ranks .* expected .* see TODO 07.4")
endforeach()
# The right groups for the wrong purpose.
wrong_mesh(07.5-data-group RANKS 8 OPTIONS --pp 2 --tp 2)
wrong_mesh(07.6-pipeline-group RANKS 8 OPTIONS --pp 2 --tp 2)
wrong_mesh(07.6-tensor-group RANKS 8 OPTIONS --pp 2 --tp 2)
wrong_mesh(07.7-a-share-a-rank OPTIONS --tp 2)
# ZeRO.
foreach(mistake 07.8-sum 07.8-first-shard 07.9-forgotten)
  wrong_mesh(${mistake} OPTIONS --pp 2 --zero 1)
endforeach()
wrong_mesh(07.8-all-reduce OPTIONS --pp 2 --zero 1 EXPECT "ncclAllReduce")
wrong_mesh(07.9-rank-0-alone OPTIONS --pp 2 --zero 1 EXPECT "did not finish")
