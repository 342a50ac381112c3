# wrongs(program OPTIONS … MISTAKES …): each must be traced to its own TODO.
function(wrongs program)
  cmake_parse_arguments(arg "" "" "OPTIONS;MISTAKES" ${ARGN})
  foreach(mistake ${arg_MISTAKES})
    string(REGEX MATCH "^[0-9.]+" todo ${mistake})
    workshop_wrong_filling(05_tensor_parallel ${program} ${mistake} RANKS 2 OPTIONS ${arg_OPTIONS} EXPECT "TODO ${todo}")
  endforeach()
endfunction()

set(pairs --layers 6,8,4,8,3 --activation gelu --max-steps 6)
workshop_check(05_tensor_parallel tensor_parallel RANKS 1 2 4 OPTIONS ${pairs})
wrongs(tensor_parallel OPTIONS ${pairs}
       MISTAKES 05.1-other-axis 05.1-every-pth-row 05.1-rank-0 05.2-other-axis 05.3-bias-before 05.3-not-summed
                05.3-average 05.4-forgotten)

set(columns --layers 6,8,4 --activation gelu --max-steps 6)
workshop_check(05_tensor_parallel tensor_parallel_gather RANKS 1 2 4 OPTIONS ${columns})
workshop_unfilled(05_tensor_parallel tensor_parallel_gather OPTIONS ${columns})
wrongs(tensor_parallel_gather OPTIONS ${columns}
       MISTAKES 05.5-one-feature 05.6-reduce-scatter 05.6-first-features 05.7-not-summed)

set(norms --layers 6,8,4,8,3 --activation gelu --max-steps 6)
workshop_check(05_tensor_parallel sequence_parallel RANKS 1 2 4 OPTIONS ${norms})
workshop_unfilled(05_tensor_parallel sequence_parallel OPTIONS ${norms})
wrongs(sequence_parallel OPTIONS ${norms}
       MISTAKES 05.8-one-row 05.9-bias-before 05.10-own-rows 05.11-not-summed 05.12-forgotten 05.12-average)
# Rank 1 goes on to the next step's all-gather, and the job hangs there.
workshop_wrong_filling(05_tensor_parallel sequence_parallel 05.12-rank-0-alone RANKS 2 TIMEOUT 15 OPTIONS ${norms}
                       EXPECT "did not finish")

set(heads --sequence 4 --width 8 --max-steps 6)
workshop_check(05_tensor_parallel attention RANKS 1 2 4 OPTIONS ${heads})
wrongs(attention OPTIONS ${heads}
       MISTAKES 05.13-itself-left-out 05.13-one-ahead 05.14-not-scaled 05.15-transposed 05.16-keys 05.17-no-row-sum
                05.18-not-transposed)

# The numbers are right, the traffic is not.
workshop_wrong_filling(05_tensor_parallel tensor_parallel 05.4-reduce-broadcast RANKS 2 OPTIONS ${pairs}
                       EXPECT "ncclAllReduce")
foreach(mistake 05.5-all-reduce 05.7-all-reduce)
  workshop_wrong_filling(05_tensor_parallel tensor_parallel_gather ${mistake} RANKS 2 OPTIONS ${columns}
                         EXPECT "ncclAllReduce")
endforeach()
foreach(mistake 05.9-all-reduce 05.11-all-reduce)
  workshop_wrong_filling(05_tensor_parallel sequence_parallel ${mistake} RANKS 2 OPTIONS ${norms}
                         EXPECT "ncclAllReduce")
endforeach()
