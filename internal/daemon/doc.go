// Package daemon is the life of the process behind a mount. hbmfs mount makes a [Mount] of its flags and calls Run. That checks the places,
// starts this program again as the daemon, and returns when the mount can be used. In that daemon, and in the foreground, it opens the source,
// mounts, and serves until the mount ends. A daemon that goes on with the mount of another takes the state of that one instead.
//
// A mistake in a Mount is a [cli.Mistake]; a source that cannot be opened gives a [SourceError].
package daemon
