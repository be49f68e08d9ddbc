package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// MarkName is the object at the top of a run that says whose place it is.
const MarkName = s3origin.RunMark

// mark is the content of the object MarkName.
type mark struct {
	Version   int    `json:"hbmfs_drain"`
	Volume    string `json:"volume,omitempty"` // that drains whole checkpoints here
	Parts     bool   `json:"parts,omitempty"`  // nodes drain their parts here, each a volume of its own
	Host      string `json:"host,omitempty"`
	Directory string `json:"directory,omitempty"`
}

const (
	markVersion = 1
	mostMark    = 64 << 10
)

func (m *mark) owner() string {
	if m.Parts {
		return "nodes drain parts of checkpoints here"
	}
	return fmt.Sprintf("directory %.300q of host %.100q drains here", m.Directory, m.Host)
}

// claim makes the place at the destination this volume's, or sees that it is. Parts of checkpoints share a place.
func (d *Drain) claim(ctx context.Context, part checkpoint.Part) error {
	want := mark{Version: markVersion, Parts: true}
	if part.Of == 1 {
		host, _ := os.Hostname() // for people
		want = mark{Version: markVersion, Volume: d.volume(), Host: host, Directory: d.dir}
	}
	found, err := d.findMark(ctx)
	if err != nil {
		return fmt.Errorf("look whose place %s is: %w", d.bucket, err)
	}
	if found != nil {
		switch {
		case found.Version != markVersion:
			return fmt.Errorf("%w: %s there is of version %d, and this program knows %d", ErrForeign, MarkName, found.Version, markVersion)
		case found.Parts == want.Parts && found.Volume == want.Volume:
			return nil
		case !d.opt.TakeOver || d.taken.Load():
			return fmt.Errorf("%w: %s, and two volumes do not share a place: name another one, or take it over (--take-over) where the other is gone for good", ErrForeign, found.owner())
		}
	} else if err := d.refuseFull(ctx); err != nil {
		return err
	}
	text, err := json.Marshal(want)
	if err != nil {
		return err
	}
	err = d.putSmall(ctx, MarkName, text, found == nil)
	if errors.Is(err, fs.ErrExist) { // another was faster
		return d.claim(ctx, part)
	}
	if err != nil {
		return fmt.Errorf("mark %s as this volume's: %w", d.bucket, err)
	}
	d.taken.Store(true) // once: another volume that takes it keeps it
	if found, err = d.findMark(ctx); err == nil && (found == nil || found.Volume != want.Volume || found.Parts != want.Parts) {
		err = fmt.Errorf("%w: another volume took it at the same time: name another place", ErrForeign)
	}
	return err
}

// findMark reads the mark, nil where there is none.
func (d *Drain) findMark(ctx context.Context) (*mark, error) {
	var text []byte
	err := d.try(ctx, func(ctx context.Context, _ func()) (err error) {
		text, err = d.bucket.Get(ctx, MarkName, mostMark)
		return err
	})
	if s3origin.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := &mark{}
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(m); err != nil || m.Version == 0 {
		return nil, fmt.Errorf("%w: object %q there is none of hbmfs's", ErrForeign, MarkName)
	}
	return m, nil
}

// refuseFull refuses a place where other things are: a mount would no longer show them.
func (d *Drain) refuseFull(ctx context.Context) error {
	if d.opt.TakeOver {
		return nil
	}
	var objects []s3origin.Stored
	var dirs []string
	err := d.try(ctx, func(ctx context.Context, alive func()) (err error) {
		objects, dirs, err = d.bucket.List(ctx, "", true, alive)
		return err
	})
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.Name != MarkName {
			dirs = append(dirs, o.Name)
		}
	}
	for _, name := range dirs {
		if name = strings.TrimSuffix(name, "/"); name != "" && name != StateName {
			return fmt.Errorf("%w: %q is there already, which no drain has put: name a place of its own below it, or take it over (--take-over)", ErrForeign, name)
		}
	}
	return nil
}
