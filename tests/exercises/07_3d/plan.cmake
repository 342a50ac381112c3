# All meshes of 8 GPUs, with all stages of ZeRO where they are possible. The mistakes are made with two micro-batches
# everywhere, because it is in each of them that stages 2 and 3 send.
set(planned --layers 24,32,16,32,16 --gpus 8 --optimizer adamw)
workshop_check(07_3d plan RANKS 1 OPTIONS ${planned})
workshop_check(07_3d plan RANKS 1 OPTIONS ${planned} --gpus 12 --gpus-per-node 4 --precision mixed --activation gelu
               --prefetch --global-batch 1536)
workshop_check(07_3d plan RANKS 1 OPTIONS --parameters 7.5e9 --gpus 64 --precision mixed --optimizer adamw)
foreach(mistake 07.10-gradients-first 07.10-one-at-a-time 07.11-one-half 07.11-once-a-step 07.11-whole 07.12-one-half
        07.12-all-replicas 07.13-every-stage 07.13-one-micro-batch 07.14-of-the-ideal-time 07.15-bubble-added
        07.15-gather-hidden 07.15-nothing-hidden)
  string(REGEX MATCH "^[0-9.]+" todo ${mistake})
  workshop_wrong_filling(07_3d plan ${mistake} RANKS 1 OPTIONS ${planned} --micro-batches 2
                         EXPECT "TODO ${todo} .* is the first that differs")
endforeach()
