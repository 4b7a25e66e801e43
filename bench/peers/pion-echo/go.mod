module syrinx.invalid/bench/pion-echo

go 1.19
