// Command loopback is go-fuse's example/loopback with passthrough switched off: the baseline for files that our
// daemon serves itself. The options are those of the example (go-fuse v2.12.1, example/loopback/main.go); the
// example itself has no flag for passthrough.
//
//	loopback MOUNTPOINT ORIGINAL
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
}

// run serves until the mount is gone; the end of ctx unmounts it.
func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: loopback MOUNTPOINT ORIGINAL")
	}
	mountpoint, original := args[0], args[1]
	root, err := fs.NewLoopbackRoot(original)
	if err != nil {
		return fmt.Errorf("open %s: %w", original, err)
	}
	second := time.Second
	server, err := fs.Mount(mountpoint, root, &fs.Options{
		AttrTimeout:     &second,
		EntryTimeout:    &second,
		NullPermissions: true,
		MountOptions: fuse.MountOptions{
			FsName:               original,
			Name:                 "loopback",
			DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		},
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", mountpoint, err)
	}
	unmounted := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { unmounted <- server.Unmount() })
	server.Wait()
	if stop() {
		return nil // unmounted from outside
	}
	return <-unmounted
}
