set(deep --layers 6,5,5,4,4,3,3,2,2 --max-steps 6)
workshop_check(04_pipeline pipeline RANKS 2)
workshop_check(04_pipeline pipeline RANKS 2 SLOW kernels collectives OPTIONS ${deep} --recompute --micro-batches 8)
workshop_check(04_pipeline pipeline RANKS 3 OPTIONS ${deep} --schedule gpipe --activation gelu)
workshop_check(04_pipeline pipeline RANKS 2 OPTIONS ${deep} --schedule interleaved)
workshop_check(04_pipeline pipeline RANKS 4 OPTIONS ${deep} --schedule interleaved --optimizer adamw)

# Schedules that would hang, or hold more than they may, are refused before any rank runs them. The cell is marked.
workshop_wrong_filling(04_pipeline pipeline 04.1-last-one-forgotten RANKS 2 OPTIONS --schedule gpipe
                       EXPECT "stage 0, instruction [0-9]+: backward 0 is missing")
workshop_wrong_filling(04_pipeline pipeline 04.2-one-too-many RANKS 2
                       EXPECT "with forward 2 3 micro-batches are in flight. 1f1b has at most 2 here")
workshop_wrong_filling(04_pipeline pipeline 04.2-one-too-many RANKS 4 OPTIONS ${deep} EXPECT "stage 3 .* F1!")
workshop_wrong_filling(04_pipeline pipeline 04.2-backward-first RANKS 2 EXPECT "stage 1 .* B0!")
foreach(mistake 04.3-one-by-one 04.3-chunk-by-chunk)
  workshop_wrong_filling(04_pipeline pipeline ${mistake} RANKS 2 OPTIONS ${deep} --schedule interleaved
                         EXPECT "TODO 04.3|This schedule is wrong")
endforeach()
# These are schedules too, but not those that were asked for: longer, or not GPipe's.
workshop_wrong_filling(04_pipeline pipeline 04.2-one-too-few RANKS 2 EXPECT "TODO 04.2")
workshop_wrong_filling(04_pipeline pipeline 04.1-backward-at-once RANKS 2 OPTIONS --schedule gpipe EXPECT "TODO 04.1")

foreach(mistake 04.4-one-for-all 04.4-never-returned 04.5-not-divided 04.5-divided-twice 04.6-overwritten
        04.6-never-cleared)
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  workshop_wrong_filling(04_pipeline pipeline ${mistake} RANKS 2 EXPECT "TODO ${todo}")
endforeach()
workshop_wrong_filling(04_pipeline pipeline 04.7-one-element RANKS 2 EXPECT "TODO 04.7")
# Round the ring of interleaved stages all send, and none receives.
workshop_wrong_filling(04_pipeline pipeline 04.7-send-first RANKS 2 TIMEOUT 15 OPTIONS ${deep} --schedule interleaved
                       EXPECT "did not finish" CPU_ONLY "NCCL leaves open whether two sends that come first meet")

# Four stages need four layers.
workshop_unfilled(04_pipeline pipeline OPTIONS --layers 6,5,4,3,2)
