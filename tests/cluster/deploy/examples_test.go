package deploy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// An example's volume, as kubelet would tell the driver of it.
func example(body map[string]any) (request volume.Request, ok bool) {
	csi, ok := body["csi"].(map[string]any)
	if !ok || csi["driver"] != "csi.hbmfs.io" {
		return volume.Request{}, false
	}
	_, persistent := csi["volumeHandle"]
	request = volume.Request{ID: "example", Attributes: map[string]string{
		"csi.storage.k8s.io/ephemeral": fmt.Sprint(!persistent), "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/serviceAccount.name":   "trainer",
		"csi.storage.k8s.io/serviceAccount.tokens": `{"sts.amazonaws.com": {"token": "a.b.c"}}`,
	}}
	attributes, _ := csi["volumeAttributes"].(map[string]any)
	for name, value := range attributes {
		request.Attributes[name] = fmt.Sprint(value)
	}
	if csi["nodePublishSecretRef"] != nil {
		request.Secrets = map[string]string{"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
		if strings.HasPrefix(request.Attributes["source"], "oci://") {
			request.Secrets = map[string]string{".dockerconfigjson": `{"auths": {}}`}
		}
	}
	return request, true
}

// The driver takes the volumes of all examples, and of those in the documentation.
func TestVolumesOfExamples(t *testing.T) {
	all := documents(t, files(t, deploy("examples", "*.yaml"))...)
	page := filepath.Join("..", "..", "..", "docs", "guide", "kubernetes.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		all = append(all, parse(t, page, block[1])...)
	}
	found := map[string]bool{}
	for _, d := range all {
		visit(d.body, func(node map[string]any) {
			request, ok := example(node)
			if !ok {
				return
			}
			found[d.file] = true
			_, err := volume.Parse(request)
			if request.Staging = !request.Inline(); err == nil && request.Staging {
				_, err = volume.Parse(request)
			}
			if err != nil {
				t.Errorf("%s: the driver refuses the volume: %v", d.file, err)
			}
		})
	}
	want := []string{page}
	for _, name := range []string{"training-job.yaml", "s3-volume.yaml", "s3-role.yaml", "oci-model.yaml", "node-directory.yaml", "cufile-configmap.yaml", "checkpoint-volume.yaml", "kv-volume.yaml"} {
		want = append(want, deploy("examples", name))
	}
	slices.Sort(want)
	if have := slices.Sorted(maps.Keys(found)); !slices.Equal(have, want) {
		t.Errorf("volumes are in %v, not in %v", have, want)
	}
}

// script returns an entry of a ConfigMap of the examples.
func script(t *testing.T, file, name string) string {
	t.Helper()
	for _, d := range documents(t, deploy("examples", file)) {
		if data, ok := d.body["data"].(map[string]any); ok && d.body["kind"] == "ConfigMap" {
			if text, ok := data[name].(string); ok {
				return text
			}
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return ""
}

// The cufile.json of the examples is what the command writes where there is no GPU.
func TestCuFileOfExamples(t *testing.T) {
	binary := blackbox.Given(t)
	written := output(t, true, binary.Path(), "cufile-json", "--for", "read", "--root", t.TempDir())
	if got := script(t, "cufile-configmap.yaml", "cufile.json"); strings.TrimSpace(got) != strings.TrimSpace(written) {
		t.Errorf("%s\nwant\n%s", got, written)
	}
}

// The training job's program runs, on a CPU, over a mount.
func TestTrainingJobRuns(t *testing.T) {
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "tokens.npy"), tokens(t, 200_000), 0o600); err != nil {
		t.Fatal(err)
	}
	// 200,000 tokens are 48 samples of 4,096, six batches of eight.
	if out := runsOver(t, source, script(t, "training-job.yaml", "train.py"), nil, ""); !strings.Contains(out, "6 steps on cpu") {
		t.Error(out)
	}
}

// The serving pods' program runs, on a CPU, over a KV volume.
func TestServingPodRuns(t *testing.T) {
	blackbox.NeedRoot(t)
	if out := runsOver(t, t.TempDir(), script(t, "kv-volume.yaml", "serve.py"), []string{"--kv", "--size", "32MiB"}, "once"); !strings.Contains(out, "0 of 8 blocks") {
		t.Error(out)
	}
}

// runsOver runs an example's program over a mount of a directory, and returns what it printed.
func runsOver(t *testing.T, source, text string, flags []string, argument string) string {
	t.Helper()
	python, library := given(t, "HBMFS_PYTHON"), given(t, "HBMFS_LIBRARY")
	blackbox.NeedFUSE(t)
	program := filepath.Join(t.TempDir(), "example.py")
	if err := os.WriteFile(program, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mount, err := blackbox.Given(t).Mount(t.Context(), source, t.TempDir(), append(flags, "--log-file", filepath.Join(t.TempDir(), "log"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := mount.Close(); err != nil {
			t.Error(err)
		}
	}()
	args := []string{program, mount.Path()}
	if argument != "" {
		args = append(args, argument)
	}
	cmd := exec.CommandContext(t.Context(), python, args...)
	cmd.Env = append(os.Environ(), "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "CUDA_VISIBLE_DEVICES=",
		"PYTHONPATH="+filepath.Join("..", "..", "..", "python"), "HBMFS_LIBRARY="+library)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// tokens is a NumPy file of n 16-bit tokens.
func tokens(t *testing.T, n int) []byte {
	t.Helper()
	header := fmt.Sprintf("{'descr': '<u2', 'fortran_order': False, 'shape': (%d,), }", n)
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	var b bytes.Buffer
	b.WriteString("\x93NUMPY\x01\x00")
	for _, part := range []any{uint16(len(header)), []byte(header), make([]uint16, n)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}
