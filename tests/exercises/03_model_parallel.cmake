# Widths that differ, a last batch that is shorter, and more than one layer on some ranks.
set(net --layers 7,6,6,5,6,3 --activation relu --samples 100)
foreach(ranks 1 2 3 4)
  workshop_check(03_model_parallel model_parallel RANKS ${ranks} OPTIONS ${net})
endforeach()
set(balanced --layers 4,4,20,20,4,4 --samples 100 --partition parameters)
workshop_check(03_model_parallel model_parallel RANKS 3 OPTIONS ${balanced})

workshop_unfilled(03_model_parallel model_parallel OPTIONS ${net})

foreach(mistake 03.1-remainder-last 03.3-pre-activation 03.3-own-input 03.3-one-row 03.4-gradient-of-the-output
        03.4-not-computed)
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  workshop_wrong_filling(03_model_parallel model_parallel ${mistake} RANKS 3 OPTIONS ${net} EXPECT "TODO ${todo}")
endforeach()
foreach(mistake 03.5-other-end 03.5-one-loss)
  workshop_wrong_filling(03_model_parallel model_parallel ${mistake} RANKS 2 OPTIONS ${net} EXPECT "TODO .*03.5")
endforeach()
workshop_wrong_filling(03_model_parallel model_parallel 03.2-one-layer-too-many RANKS 3 OPTIONS ${balanced}
                       EXPECT "TODO 03.2")
# Parts that are none: the program says so itself.
foreach(mistake 03.1-off-by-one 03.1-remainder-lost)
  workshop_wrong_filling(03_model_parallel model_parallel ${mistake} RANKS 3 OPTIONS ${net}
                         EXPECT "must ascend from 0 to 5: see TODO 03.1")
endforeach()
workshop_wrong_filling(03_model_parallel model_parallel 03.2-empty-parts RANKS 3
                       OPTIONS --layers 1,1,1,40 --partition parameters
                       EXPECT "must ascend from 0 to 3: see TODO 03.2")
# Nobody sends back: the ranks below compute with what is left in the buffer.
workshop_wrong_filling(03_model_parallel model_parallel 03.4-each-on-its-own RANKS 2 OPTIONS ${net} EXPECT "TODO 03.4")
# Sent before it was computed: on two ranks the order of the calls alone would do.
workshop_wrong_filling(03_model_parallel model_parallel 03.4-send-first RANKS 2 3 OPTIONS ${net} EXPECT "TODO 03.4")
# What one rank sends and none receives, or the other way round: both sides wait.
foreach(mistake 03.3-never-received 03.3-wrong-peer 03.4-not-sent-back)
  workshop_wrong_filling(03_model_parallel model_parallel ${mistake} RANKS 3 TIMEOUT 8 OPTIONS ${net}
                         EXPECT "did not finish on 3 ranks")
endforeach()
