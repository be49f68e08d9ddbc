// Command libhbmfs is package cufile as a C library: libhbmfs.h is its interface and its documentation.
//
//	make lib    (go build -buildmode=c-shared -tags nonvml -o bin/libhbmfs.so ./cmd/libhbmfs)
//
// Three layers. layer.c and its like have the functions of the header. They refuse a forked child before Go is entered, because its
// threads did not survive the fork. They bring structs of any version to the present size. export.go is the border: C's types to
// Go's, errors to codes, and a panic to an error. The rest is plain Go, which tests and the race detector reach. [library] is the
// table of handles, and readers, files and requests know how to end their work.
package main

import "github.com/hbmfs/hbmfs/internal/text/cli"

// version is that of the whole release.
var version = cli.Version()

// main is never called: a C library has none.
func main() {}
