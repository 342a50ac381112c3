workshop_check(01_single_gpu mlp RANKS 1)
workshop_check(01_single_gpu mlp RANKS 1 OPTIONS --layers 16,8,8,3 --activation gelu --optimizer adamw)
workshop_unfilled(01_single_gpu mlp RANKS 1)

set(net --layers 6,5,4,2)
foreach(mistake 01.1-not-transposed 01.1-accumulated 01.2-rows-and-columns-swapped 01.3-swapped-operands 01.4-transposed 01.4-one-row
        01.5-transposed 01.6-factor-2-forgotten 01.7-wrong-sign)
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  workshop_wrong_filling(01_single_gpu mlp ${mistake} RANKS 1 OPTIONS ${net} EXPECT "TODO ${todo}")
endforeach()
workshop_wrong_filling(01_single_gpu mlp 01.8-no-bias-correction RANKS 1 OPTIONS ${net} --optimizer adamw
                       EXPECT "TODO 01.8")
