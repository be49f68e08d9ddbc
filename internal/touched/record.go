package touched

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/control"
)

const (
	format      = 1         // of the file
	mostFile    = 256 << 20 // bytes
	mostTouches = 1 << 20
	mostBytes   = 1 << 60
	saveTime    = 20 * time.Second // to collect a record once somebody has interrupted it
	client      = "hbmfs warm"     // as the status of the mount names it
)

// Record is what was read of a mount. Save makes JSON of it.
type Record struct {
	Format   int        `json:"hbmfs_record"`
	Since    time.Time  `json:"since"`
	Until    time.Time  `json:"until"`
	Complete bool       `json:"complete"` // false: more was read than the daemon takes down
	Files    []File     `json:"files"`
	Touches  [][3]int64 `json:"touches"` // place among the files, offset, bytes; in the order of their first reads
}

// File is a file of the mount.
type File struct {
	Name    string `json:"name"` // relative to the root of the mount
	Version string `json:"version"`
	Size    int64  `json:"size"`
}

// Bytes are those of all touches.
func (r *Record) Bytes() (n int64) {
	for _, t := range r.Touches {
		n += t[2]
	}
	return n
}

// Take gives the record of the mount's daemon: what was read since it began.
func Take(ctx context.Context, mount string) (*Record, error) {
	c, err := control.Dial(ctx, mount, client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // nothing is lost
	return collect(ctx, c, 0)
}

// Watch records what is read from now on, for some time or until ctx ends. begun is called when it begins.
func Watch(ctx context.Context, mount string, length time.Duration, begun func()) (*Record, error) {
	c, err := control.Dial(ctx, mount, client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // which ends the record
	if _, err := c.Record(ctx, control.AskRecord{Flags: control.RecordBegin}); err != nil {
		return nil, older(err)
	}
	begun()
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	return collect(late, c, control.RecordOwn)
}

// collect asks for all parts of a record.
func collect(ctx context.Context, c *control.Client, which control.RecordFlags) (*Record, error) {
	r := &Record{Format: format, Files: []File{}, Touches: [][3]int64{}}
	known := map[string]int64{}
	for q := (control.AskRecord{Flags: which}); ; {
		part, err := c.Record(ctx, q)
		if err != nil {
			return nil, older(err)
		}
		places := make([]int64, len(part.Objects))
		for i, o := range part.Objects {
			at, seen := known[o.Name]
			if !seen {
				at = int64(len(r.Files))
				known[o.Name] = at
				r.Files = append(r.Files, File{o.Name, o.Version, o.Size})
			}
			places[i] = at
		}
		for _, t := range part.Touches.Touches {
			r.Touches = append(r.Touches, [3]int64{places[t.Object], t.Offset, t.Length})
		}
		r.Since, r.Complete = part.Since, !part.Full
		if part.Next <= q.From || part.Next == part.Total { // the end, or a daemon that does not get on
			r.Until = time.Now()
			return r, nil
		}
		q.From = part.Next
	}
}

// older says why a daemon does not know a question.
func older(err error) error {
	if errors.Is(err, syscall.EPROTO) {
		return fmt.Errorf("the daemon of this mount is older than records: replace it with hbmfs upgrade (%w)", err)
	}
	return err
}

// Save writes the record to a file, all of it or nothing.
func (r *Record) Save(name string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temporary := fmt.Sprintf("%s.%d.tmp", name, os.Getpid())
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save the record: %w", err), os.Remove(temporary))
	}
	return nil
}

// Load reads a record from a file.
func Load(name string) (*Record, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it is only read
	r, err := Parse(io.LimitReader(f, mostFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// Parse reads a record, and checks each place of it.
func Parse(from io.Reader) (*Record, error) {
	var r Record
	decoder := json.NewDecoder(from)
	if err := decoder.Decode(&r); err != nil {
		return nil, fmt.Errorf("it is no record of hbmfs warm --record: %w", err)
	}
	switch {
	case r.Format != format:
		return nil, fmt.Errorf("it is no record of hbmfs warm --record, or of another version (hbmfs_record is %d, this program reads %d)", r.Format, format)
	case len(r.Touches) > mostTouches || len(r.Files) > mostTouches:
		return nil, fmt.Errorf("it has %d touches of %d files, and may have %d", len(r.Touches), len(r.Files), mostTouches)
	}
	for _, f := range r.Files {
		if f.Name == "" || f.Size < 0 || len(f.Name)+len(f.Version) > control.MaxPayload/2 {
			return nil, fmt.Errorf("a file of it has no name, or one that no mount has: %.100q of %d bytes", f.Name, f.Size)
		}
	}
	var sum int64
	for i, t := range r.Touches {
		if t[0] < 0 || t[0] >= int64(len(r.Files)) || t[1] < 0 || t[2] <= 0 || t[1] > r.Files[t[0]].Size-t[2] {
			return nil, fmt.Errorf("touch %d lies in no file of it: %v", i, t)
		}
		if sum += min(t[2], mostBytes+1); sum > mostBytes {
			return nil, fmt.Errorf("it has more than %d bytes", int64(mostBytes))
		}
	}
	return &r, nil
}
