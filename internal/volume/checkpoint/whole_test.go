package checkpoint

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// archive is a file as torch.save writes it.
func archive(t *testing.T, comment string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range []string{"archive/data.pkl", "archive/data/0", "archive/version"} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = w.Write(bytes.Repeat([]byte(name), 20))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.SetComment(comment), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWhole cuts files at each byte.
func TestWhole(t *testing.T) {
	header := `{"t":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}`
	tensors := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), "ninebytes"...)
	comments := map[string]string{"with a comment.ckpt": "more"}
	for name, text := range map[string][]byte{"mp_rank_00_model_states.pt": archive(t, ""), "with a comment.ckpt": archive(t, "more"), "model.safetensors": tensors} {
		for n := range len(text) + 1 {
			why, err := cut(bytes.NewReader(text[:n]), int64(n), filepath.Ext(name))
			if ends := len(text) - len(comments[name]); err != nil || (why == "") != (n >= ends) { // no reader needs a comment
				t.Errorf("%d of %d bytes of %s: %q, %v", n, len(text), name, why, err)
			}
		}
	}
	for name, text := range map[string]string{
		"old.pt": "\x80\x02\x8a\x0a", "rank0.pt": "0", "notes.txt": "PK\x03\x04", "__0_0.distcp": "PK\x03\x04",
		"behind.pt": string(archive(t, "")) + "filled up", "large.pt": "PK\x03\x04 PK\x05\x06\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
	} {
		if why, err := cut(bytes.NewReader([]byte(text)), int64(len(text)), filepath.Ext(name)); why != "" || err != nil {
			t.Errorf("%s: %q, %v", name, why, err)
		}
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(dir, "draft/a"), 0o755), os.WriteFile(filepath.Join(dir, "draft/a/b.pt"), archive(t, "")[:100], 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	const want = `file "a/b.pt" is not whole (the archive has no directory at its end): its writer may have been killed`
	if err := allWhole(root, "draft"); !errors.Is(err, ErrInvalid) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
