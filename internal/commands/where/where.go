// Package where finds out where the bytes of a file in a mount lie. It names files of its source, and paths of files of this
// machine that another program can open.
package where

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// Extent is an extent with the name of the file at the source that it lies in, "" for bytes of the mount.
type Extent struct {
	control.Extent
	Name string
}

// Extents asks for all extents of a file, and for the names of the files that they lie in. As is how the daemon hears of it.
func Extents(ctx context.Context, f *os.File, as string) ([]Extent, error) {
	client, err := control.Dial(ctx, f.Name(), as)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // nothing is leased
	names := map[uint64]string{}
	var all []Extent
	for batch, err := range control.Batches(f, 0, math.MaxInt64, true) {
		if err != nil {
			return nil, err
		}
		if objects := batch.Objects(); len(objects) > 0 {
			named, err := client.Names(ctx, batch.Ticket, objects)
			if err != nil {
				return nil, err
			}
			for _, n := range named {
				names[n.Object] = n.Name
			}
		}
		for _, e := range batch.Extents {
			name := names[e.Object]
			if name == "" && e.Flags&control.ExtentMount == 0 {
				return nil, fmt.Errorf("the daemon does not name the file that the extent at %d of %s lies in", e.Logical, f.Name())
			}
			all = append(all, Extent{e, name})
		}
	}
	return all, nil
}

// Run is count equal pieces of a file. The one at offset lies in path from byte at on, the next one length and stride further.
type Run struct {
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Count  int64  `json:"count"`
	Path   string `json:"path,omitempty"` // of this machine
	At     int64  `json:"at"`
	Stride int64  `json:"stride,omitempty"` // where count is more than 1
	Why    string `json:"why,omitempty"`    // no path
}

// Location is where the bytes of a file lie on this machine.
type Location struct {
	File  string `json:"file"`
	Size  int64  `json:"size"`
	Whole string `json:"whole,omitempty"` // the file that is the same, byte for byte
	Local bool   `json:"local"`           // all bytes have a path
	Runs  []Run  `json:"runs"`
}

// Locate finds the backing files of a file in a mount. Each path is compared with the file that the daemon reads: device and
// inode are the same.
func Locate(ctx context.Context, name string) (*Location, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := control.Info(f)
	if err != nil {
		return nil, fmt.Errorf("%w: give cuFile the path as it is", err)
	}
	extents, err := Extents(ctx, f, "hbmfs locate")
	if err != nil {
		return nil, err
	}
	backing, err := backings(ctx, f)
	if err != nil {
		return nil, err
	}
	root, err := control.Root(name)
	if err != nil {
		return nil, err
	}
	status, err := statusOf(root)
	if err != nil {
		return nil, err
	}
	l := &Location{File: name, Size: info.Size, Local: true, Runs: []Run{}}
	checked := map[uint64]Run{} // path and why, by object
	for _, e := range extents {
		r := Run{Offset: e.Logical, Length: e.Length, Count: e.Count}
		switch {
		case e.Flags&control.ExtentPending != 0:
			r.Why = "not on this machine yet: hbmfs warm brings it"
		case e.Flags&control.ExtentMount != 0:
			r.Why = "made by the mount: in no file"
		default:
			found, known := checked[e.Object]
			if !known {
				found.Path, err = pathOf(status, e.Name, backing[e.Object])
				if err != nil {
					found.Why = err.Error()
				}
				checked[e.Object] = found
			}
			r.Path, r.Why, r.At = found.Path, found.Why, e.Offset
			if e.Count > 1 {
				r.Stride = e.Stride
			}
		}
		l.Local = l.Local && r.Why == ""
		l.Runs = append(l.Runs, r)
	}
	if len(l.Runs) == 1 && l.Local && l.Runs[0].Count == 1 && l.Runs[0].At == 0 {
		if info, err := os.Stat(l.Runs[0].Path); err == nil && info.Size() == l.Size {
			l.Whole = l.Runs[0].Path
		}
	}
	return l, nil
}

// identity tells whether two files are the same.
type identity struct{ dev, ino uint64 }

// backings asks which files of this machine the daemon reads.
func backings(ctx context.Context, f *os.File) (map[uint64]identity, error) {
	client, err := control.Dial(ctx, f.Name(), "hbmfs locate")
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // it gives the leases back, too
	found := map[uint64]identity{}
	for batch, err := range control.Batches(f, 0, math.MaxInt64, true) {
		if err != nil {
			return nil, err
		}
		objects := batch.Objects()
		if len(objects) == 0 {
			continue
		}
		files, err := client.Redeem(ctx, batch.Ticket, objects)
		if err != nil {
			return nil, err
		}
		for _, b := range files {
			if b.File == nil {
				continue
			}
			info, err := b.File.Stat()
			_ = b.File.Close() // nothing was read
			if err != nil {
				return nil, err
			}
			found[b.Object] = identityOf(info)
		}
		if err := client.Release(ctx, objects...); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func identityOf(info os.FileInfo) identity {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return identity{s.Dev, s.Ino}
	}
	return identity{}
}

func statusOf(root string) (*status.Status, error) {
	text, err := os.ReadFile(filepath.Join(root, mountpoint.ControlName, "status"))
	if err != nil {
		return nil, err
	}
	s := new(status.Status)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, errors.New("the status of the mount is not that of this version of hbmfs")
	}
	return s, nil
}

// pathOf finds the path of a file of the source, or of a segment, that is the file which the daemon reads.
func pathOf(told *status.Status, name string, want identity) (string, error) {
	places := []string{filepath.Join(told.Source, name), told.Source} // a source may be one file
	if told.Cache != nil {
		places = append(places, filepath.Join(told.Cache.Path, name))
	}
	for _, path := range places {
		info, err := os.Stat(path)
		if err == nil && want != (identity{}) && identityOf(info) == want {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not to be found below %s here: is the daemon in another container?", name, told.Source)
}
