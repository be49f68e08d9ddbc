package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/fs/namespaces"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
)

// KV says that the source is the directory of a KV volume.
type KV struct {
	On           bool
	Size, Memory size.Amount // bytes of the disk, and of memory before it
	DiskIO       string      // direct, buffered, or "" for the one that suits Memory
}

// The values of DiskIO.
const (
	diskDirect   = "direct"
	diskBuffered = "buffered"
)

// buffered says why the disk tier is read and written through the page cache; empty where it is not. The page cache gives blocks that it has
// two to three times sooner than the disk, so it is of use where no memory tier has these.
func (k *KV) buffered() string {
	switch {
	case k.DiskIO == diskBuffered:
		return "the volume was mounted with --disk-io buffered"
	case k.DiskIO == "" && k.Memory == 0:
		return "the volume was mounted without --memory, and the page cache is its memory (--disk-io direct passes it)"
	}
	return ""
}

// leastSize is the least that Size may be.
const leastSize = 1 << 20

// check refuses a source that cannot be a KV volume.
func (k *KV) check(m *Mount) error {
	switch {
	case !k.On:
		return nil
	case k.DiskIO != "" && k.DiskIO != diskDirect && k.DiskIO != diskBuffered:
		return cli.Mistakef("--disk-io: want direct or buffered, not %q", k.DiskIO)
	case k.Size < leastSize:
		return cli.Mistakef("--size is missing: a KV volume needs it, the bytes of the disk of %s that blocks may take, at least 1MiB: such as --size 200GiB", m.Source)
	case k.Memory != 0 && k.Memory < leastSize:
		return cli.Mistakef("--memory: want at least 1MiB, or none")
	}
	if free := memoryFree(); free > 0 && int64(k.Memory) > free {
		return fmt.Errorf("--memory %s is more than this machine has free (%s): name less", size.Binary(int64(k.Memory)), size.Decimal(free))
	}
	return m.checkVolume("a KV volume", "blocks are", "namespaces have the owners who made them")
}

// memoryFree is how much memory programs can get without swapping, as the kernel estimates it; 0 where it does not.
func memoryFree() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			n := int64(0)
			_, _ = fmt.Sscan(rest, &n) // 0 where it is none
			return n << 10
		}
	}
	return 0
}

// openKV opens the directory of a KV volume.
func (m *Mount) openKV(opt *fs.Options) (*source, error) {
	k := &m.KV
	s, err := kv.New(kv.Options{Directory: m.Source, Size: int64(k.Size), Memory: int64(k.Memory), Buffered: k.buffered(), Log: opt.Log, Life: opt.Life})
	if err != nil {
		return nil, err
	}
	mounted := s.Load
	if !opt.Life.Adopts() { // otherwise the daemon before has it still
		if err := s.Load(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		mounted = nil
	}
	v := namespaces.New(s)
	opt.Source, opt.KV, opt.Around, opt.MayWrite, opt.Notes = s.Directory(), s, v.Around, v.MayWrite, m.notes
	return &source{
		listing: v.Listing(),
		what: func() string {
			what := fmt.Sprintf("%d namespaces, %s of disk", len(s.Namespaces()), size.Binary(int64(k.Size)))
			if k.Memory > 0 {
				what += ", " + size.Binary(int64(k.Memory)) + " of memory"
			}
			return what
		},
		mounted: mounted,
		run:     s.Run,
		state:   func() handover.State { return s.State() },
		close: func() {
			if err := s.Close(); err != nil {
				opt.Log.Error("the KV volume could not be closed in order: its next mount may begin anew", "error", err)
			}
		},
	}, nil
}
