# The participant's programs against the solution's, and known mistakes that must be named.
foreach(ranks 2 3 4)
  workshop_check(00_collectives collectives RANKS ${ranks})
  workshop_check(00_collectives ring_allreduce RANKS ${ranks})
endforeach()
workshop_check(00_collectives bandwidth RANKS 2 OPTIONS --max-mib 1)

foreach(mistake 00.1-wrong-root 00.2-same-row-to-all 00.2-root-left-out 00.3-rows-reversed 00.4-maximum 00.5-own-row-alone
        00.6-average 00.7-own-row-to-all 00.8-count-of-one-row 00.9-into-row-0)
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  workshop_wrong_filling(00_collectives collectives ${mistake} RANKS 2 EXPECT "TODO ${todo}")
endforeach()
# The other ranks go on to the next collective, and the job hangs there.
workshop_wrong_filling(00_collectives collectives 00.4-root-alone RANKS 2 TIMEOUT 15 EXPECT "did not finish")

# Chunks of equal length, so that only their content can tell; three ranks, because with two both neighbours are one.
foreach(mistake 00.10-wrong-direction 00.11-off-by-one 00.12-overwritten 00.13-as-in-reduce-scatter)
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  workshop_wrong_filling(00_collectives ring_allreduce ${mistake} RANKS 3 OPTIONS --count 12 EXPECT "TODO ${todo}")
endforeach()
workshop_wrong_filling(00_collectives ring_allreduce 00.10-send-first RANKS 2 TIMEOUT 15 EXPECT "did not finish"
                       CPU_ONLY "NCCL leaves open whether two sends that come first meet")

foreach(mistake 00.14-not-divided 00.14-once)
  workshop_wrong_filling(00_collectives bandwidth ${mistake} RANKS 2 OPTIONS --max-mib 1 EXPECT "TODO 00.14")
endforeach()
workshop_wrong_filling(00_collectives bandwidth 00.15-enqueueing-alone RANKS 2 OPTIONS --max-mib 1
                       EXPECT "TODO 00.15 measures")

# On one rank the ring has no steps, so its TODOs are not reached.
workshop_unfilled(00_collectives ring_allreduce RANKS 2 4)
