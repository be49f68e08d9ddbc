package checkpoint

import (
	"fmt"
	"io"
	"os"
)

// MostManifest is the size of the largest manifest, bytes.
const MostManifest = mostManifest

// ParseManifest reads the text of a manifest, as another place has it. It allocates in proportion to text.
func ParseManifest(text []byte) (*Manifest, error) {
	m, err := parse(text)
	if err != nil {
		return nil, failf(ErrDamaged, "the manifest is damaged: %v", err)
	}
	return m, nil
}

// Misfit compares the files with those of a place, whose sizes size gives. It describes the first mismatch, or returns "".
func (m *Manifest) Misfit(size func(name string) (bytes int64, there bool)) string {
	for i := range m.Files {
		f := &m.Files[i]
		switch bytes, there := size(f.Name); {
		case !there:
			return fmt.Sprintf("its file %q is missing there", f.Name)
		case bytes != f.Size:
			return fmt.Sprintf("its file %q has %d bytes there, and %d were published", f.Name, bytes, f.Size)
		}
	}
	return ""
}

// Text is the manifest as its file has it.
func (m *Manifest) Text() ([]byte, error) { return m.marshal() }

// ManifestText reads the manifest's file as it is.
func (c *Checkpoint) ManifestText() ([]byte, error) {
	f, _, err := openRegular(c.dir, ManifestName)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %s: %w", c.Path, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	text, err := io.ReadAll(io.LimitReader(f, mostManifest))
	if err != nil {
		return nil, fmt.Errorf("read the manifest of %s: %w", c.Path, err)
	}
	return text, nil
}

// OpenFile opens a file of the checkpoint for reading, and follows no link to it. [ErrDamaged]: it is not there, or has another size than
// was published.
func (c *Checkpoint) OpenFile(file *File) (*os.File, error) {
	if err := c.misfit(file); err != nil {
		return nil, err
	}
	f, info, err := openRegular(c.dir, file.Name)
	if err == nil && info.Size() != file.Size {
		err = failf(ErrDamaged, "it has %d bytes, %d were published", info.Size(), file.Size)
		_ = f.Close() // opened for reading
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Removed tells whether the checkpoint is no longer at its path. Its missing files are then no damage.
func (c *Checkpoint) Removed() bool { return c.removed() }

// DrainState is the directory beside the checkpoints where package drain keeps its journals.
const DrainState = ".hbmfs-drain"
