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
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

const (
	format      = 1         // of the file
	mostFile    = 256 << 20 // bytes
	mostTouches = 1 << 20
	mostBytes   = 1 << 60
	saveTime    = 20 * time.Second // to collect a part of a record
	collectEach = time.Second      // so much of a record is lost with a daemon
	client      = "hbmfs warm"     // as the status of the mount names it
)

// Record lists the reads of a mount. Save makes JSON of it.
type Record struct {
	Format   int        `json:"hbmfs_record"`
	Since    time.Time  `json:"since"`
	Until    time.Time  `json:"until"`
	Complete bool       `json:"complete"`       // false: more was read than the daemon takes down, or there are gaps
	Gaps     int        `json:"gaps,omitempty"` // daemons that ended meanwhile, each with what was read in its last second
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

// Take gives the record of the mount's daemon: the reads since it began.
func Take(ctx context.Context, mount string) (*Record, error) {
	c, err := control.Dial(ctx, mount, client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // nothing is lost
	k := newCollector()
	if _, err := k.collect(ctx, c, control.AskRecord{}); err != nil {
		return nil, err
	}
	return k.end(), nil
}

// Watch records reads from now on, for some time or until ctx ends. It goes on with the next daemon of the mount, and counts a gap
// in the record then. Where none comes, it ends with the reads so far. begun is called when it begins, and when it goes on.
func Watch(ctx context.Context, mount string, length time.Duration, begun func(again bool)) (*Record, error) {
	root, err := control.Root(mount) // while there is a daemon that shows it
	if err != nil {
		return nil, err
	}
	w := &watch{mount: root, to: newCollector()}
	defer w.end()
	if err := w.begin(ctx); err != nil {
		return nil, older(err)
	}
	begun(false)
	asks := context.WithoutCancel(ctx) // the last part is asked for when ctx has ended
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for over := false; !over; {
		over = pause.For(ctx, collectEach) != nil
		if err := w.collect(asks); err == nil {
			continue
		}
		w.to.record.Gaps++
		if over || w.goOn(ctx) != nil {
			break
		}
		begun(true)
	}
	return w.to.end(), nil
}

// watch is a record that is being made.
type watch struct {
	mount string
	conn  *control.Client // has begun a record; nil for none
	from  uint32          // the touch of it that comes next
	to    *collector
}

// begin begins a record of the daemon that there is.
func (w *watch) begin(ctx context.Context) error {
	c, err := control.Dial(ctx, w.mount, client)
	if err != nil {
		return err
	}
	if _, err := c.Record(ctx, control.AskRecord{Flags: control.RecordBegin}); err != nil {
		_ = c.Close() // it has no record
		return err
	}
	w.conn, w.from = c, 0
	return nil
}

// goOn begins a record of the next daemon, once there is one.
func (w *watch) goOn(ctx context.Context) error {
	w.end()
	for end := time.Now().Add(control.NextDaemonTime); ; {
		err := w.begin(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
}

// collect takes the reads since it was called before.
func (w *watch) collect(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	w.from, err = w.to.collect(ctx, w.conn, control.AskRecord{Flags: control.RecordOwn, From: w.from})
	return err
}

// end ends the record of the daemon.
func (w *watch) end() {
	if w.conn != nil {
		_ = w.conn.Close() // its reads were collected
	}
	w.conn = nil
}

// collector makes a record of parts, of one daemon or several.
type collector struct {
	record *Record
	places map[string]int64  // of the files, by their names
	seen   map[[2]int64]bool // place and offset of the touches
}

func newCollector() *collector {
	return &collector{record: &Record{Format: format, Files: []File{}, Touches: [][3]int64{}, Complete: true}, places: map[string]int64{}, seen: map[[2]int64]bool{}}
}

// collect asks a daemon for all parts of a record, and gives the touch that comes next.
func (k *collector) collect(ctx context.Context, c *control.Client, q control.AskRecord) (next uint32, err error) {
	for {
		part, err := c.Record(ctx, q)
		if err != nil {
			return q.From, older(err)
		}
		k.add(&part)
		if part.Next <= q.From || part.Next == part.Total { // the end, or a daemon that does not get on
			return max(q.From, part.Next), nil
		}
		q.From = part.Next
	}
}

func (k *collector) add(part *control.RecordPart) {
	r := k.record
	places := make([]int64, len(part.Objects))
	for i, o := range part.Objects {
		at, known := k.places[o.Name]
		if !known {
			at = int64(len(r.Files))
			k.places[o.Name] = at
			r.Files = append(r.Files, File{o.Name, o.Version, o.Size})
		}
		places[i] = at
	}
	for _, t := range part.Touches.Touches {
		switch first := [2]int64{places[t.Object], t.Offset}; {
		case k.seen[first]: // a daemon does not know the reads from the one before
		case len(r.Touches) >= mostTouches:
			r.Complete = false
		default:
			k.seen[first] = true
			r.Touches = append(r.Touches, [3]int64{places[t.Object], t.Offset, t.Length})
		}
	}
	if r.Since.IsZero() {
		r.Since = part.Since
	}
	r.Complete = r.Complete && !part.Full
}

// end gives the record.
func (k *collector) end() *Record {
	k.record.Until = time.Now()
	k.record.Complete = k.record.Complete && k.record.Gaps == 0
	return k.record
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
