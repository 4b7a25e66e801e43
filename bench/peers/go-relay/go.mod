module syrinx.invalid/bench/go-relay

go 1.19
