module tailnet-operator/bench/noop

go 1.26
