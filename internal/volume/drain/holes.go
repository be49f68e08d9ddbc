package drain

import (
	"fmt"
	"syscall"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// mostHoles is how many bytes of a checkpoint may lie in holes. An object has none: zeros are sent for them, and other checkpoints wait
// meanwhile. A sparse file may have terabytes.
const mostHoles = 64 << 30

// refuseHoles refuses a checkpoint of which far more would be sent than it has.
func (s *sending) refuseHoles() error {
	if s.c.Manifest.Size() <= mostHoles {
		return nil
	}
	holes := int64(0)
	for i := range s.c.Manifest.Files {
		f := &s.c.Manifest.Files[i]
		n, err := s.holes(f)
		if err != nil {
			return fmt.Errorf("file %q: %w", f.Name, err)
		}
		if holes += n; holes > mostHoles {
			return fmt.Errorf("%w: its files have more than %d GiB in holes, %q is one of them. An object has no holes, and a drain sends no more zeros: write files without", errNever, mostHoles>>30, f.Name)
		}
	}
	return nil
}

func (s *sending) holes(f *checkpoint.File) (int64, error) {
	file, err := s.c.OpenFile(f)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }() // opened for reading
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	const block = 512 // of st_blocks
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks*block >= f.Size {
		return 0, nil
	}
	return checkpoint.Holes(file)
}
