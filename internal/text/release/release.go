// Package release says which version of hbmfs a program is. Every program asks here, so that all of a release say the same.
package release

import "runtime/debug"

// version is set by the linker: make gives it, as `git describe` calls the commit.
var version = ""

// Version returns the version that make linked in, else the one that `go install` fetched, such as "v0.2.0". A program of
// neither is "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
