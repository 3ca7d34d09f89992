// How Go and the C library read an address, a network or a name: what policies/tests/spellings compares ours with.
module tailnet-operator/policies/tests/spellings/reader

go 1.26.0

require golang.org/x/net v0.56.0

require golang.org/x/text v0.40.0 // indirect
