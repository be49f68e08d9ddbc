// Command libhbmfs is package cufile as a C library: libhbmfs.h is its interface and its documentation.
//
//	make lib    (go build -buildmode=c-shared -tags nonvml -o bin/libhbmfs.so ./cmd/libhbmfs)
//
// Three layers. layer.c and its like have the functions of the header: they refuse a forked child before Go is entered, whose threads
// did not survive the fork, and bring structs of any version to the present size. export.go is the border: C's types
// to Go's, errors to codes, and a panic to an error. The rest is plain Go, which tests and the race detector reach:
// [library] is the table of handles, and readers, files and requests know how to end what they began.
package main

import (
	"runtime"

	"github.com/hbmfs/hbmfs/internal/release"
)

// version is that of the whole release.
var version = release.Version()

// ballast is counted as live memory and never touched, so it takes none. Without it the heap has 2 MB, the collector runs for each two
// megabytes of garbage, and stops all threads for that: on an H200 400 times a second, which took a quarter of the rate of small batches.
var ballast = make([]byte, 32<<20)

func init() { runtime.KeepAlive(&ballast) }

// main is never called: a C library has none.
func main() {}
