package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	commit = "0123456789abcdef0123456789abcdef01234567"
	item   = `{"kind": "storage#object", "bucket": "bench", "name": "object.bin", "size": "%d", "generation": "1", "updated": "2026-01-01T00:00:00Z"}`
)

// cloud has the server answer for its file as S3, Google Cloud Storage, Azure, a registry, and a Hub with its storage do.
func (s *server) cloud(size int64, sha256 string) {
	texts := map[string]string{
		"/bench/":                                fmt.Sprintf(`<ListBucketResult><Contents><Key>object.bin</Key><Size>%d</Size><ETag>"1"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>`, size),
		"/bench":                                 fmt.Sprintf(`<EnumerationResults><Blobs><Blob><Name>object.bin</Name><Properties><Etag>1</Etag><Content-Length>%d</Content-Length></Properties></Blob></Blobs></EnumerationResults>`, size),
		"/v2/org/name/manifests/v1":              fmt.Sprintf(`{"schemaVersion": 2, "layers": [{"mediaType": "application/octet-stream", "digest": "sha256:%s", "size": %d, "annotations": {"org.opencontainers.image.title": "object.bin"}}]}`, sha256, size),
		"/storage/v1/b/bench/o":                  fmt.Sprintf(`{"kind": "storage#objects", "items": [`+item+`]}`, size),
		"/storage/v1/b/bench/o/object.bin":       fmt.Sprintf(item, size),
		"/api/models/org/name/revision/main":     `{"sha": "` + commit + `"}`,
		"/api/models/org/name/commits/" + commit: `[]`,
		"/api/models/org/name/tree/" + commit:    fmt.Sprintf(`[{"type": "file", "oid": %q, "size": %d, "path": "object.bin", "lfs": {"oid": %q, "size": %d}}]`, commit, size, sha256, size),
	}
	storage := strings.Replace(s.url, "127.0.0.1", "localhost", 1) // another host, as the Hub's is
	s.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, listed := texts[r.URL.Path]
		h := w.Header()
		switch {
		case strings.Contains(r.URL.Path, "/resolve/"):
			time.Sleep(s.latency)
			for name, value := range map[string]string{"X-Repo-Commit": commit, "X-Linked-Etag": `"` + sha256 + `"`, "X-Linked-Size": fmt.Sprint(size), "Location": storage + "object.bin"} {
				h.Set(name, value)
			}
			w.WriteHeader(http.StatusFound)
		case listed && r.URL.Query().Get("alt") != "media":
			time.Sleep(s.latency)
			h.Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text) // they may have hung up
		default:
			h.Set("X-Goog-Generation", "1")
			s.ServeHTTP(w, r)
		}
	})
}

// clouds compares first reads of one object from S3, Google Cloud Storage, Azure, a registry and a Hub, and what Python's own clients of Google's and
// the Hub need to download it. All servers are one fake, which is far away. The last row is a mount of the directory, for its memory.
func (b *bench) clouds(ctx context.Context, python string, rounds int) error {
	if err := exec.CommandContext(ctx, python, "-c", "import huggingface_hub, gcsfs").Run(); err != nil {
		return fmt.Errorf("%s lacks huggingface_hub or gcsfs (%w): pip install them, or name another with PYTHON=", python, err)
	}
	object := filepath.Join(b.work, "object.bin")
	f, err := os.Open(object)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	b.server.cloud(b.size, fmt.Sprintf("%x", sum.Sum(nil)))
	url := strings.TrimSuffix(b.server.url, "/")
	list := []entrant{
		b.mounted("hbmfs, s3://", "s3://bench/?region=us-east-1&anonymous=true&endpoint="+url),
		b.mounted("hbmfs, gs://", "gs://bench/?anonymous=true&endpoint="+url),
		b.mounted("hbmfs, az://", "az://account/bench/?anonymous=true&endpoint="+url),
		b.mounted("hbmfs, oci://", "oci://registry.test/org/name:v1?anonymous=true&endpoint="+url),
		b.mounted("hbmfs, hf://", "hf://org/name?anonymous=true&endpoint="+url),
		b.python("huggingface_hub", python, "HF_ENDPOINT="+url, `import huggingface_hub
get = lambda dir: huggingface_hub.hf_hub_download("org/name", "object.bin", cache_dir=dir)`),
		b.python("gcsfs", python, "STORAGE_EMULATOR_HOST="+url, `import os
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false" # else it asks the server by gRPC first
import gcsfs
get = lambda dir: gcsfs.GCSFileSystem(token="anon").get_file("bench/object.bin", dir + "/object.bin")`),
		b.mounted("hbmfs, the directory", filepath.Join(b.work, "local")),
	}
	if err := errors.Join(os.Mkdir(filepath.Join(b.work, "local"), 0o755), os.Link(object, filepath.Join(b.work, "local", "object.bin"))); err != nil {
		return err
	}
	return b.alternate(ctx, fmt.Sprintf("latency %v, %.0f MB/s a connection", b.latency, b.rate/1e6), list, 0, rounds)
}

// mounted reads the object through a mount of a source.
func (b *bench) mounted(name, source string) entrant {
	c := contender{name, func(ctx context.Context, dir, _ string) (*running, error) {
		return mountCached(ctx, b.hbmfs, source, dir)
	}}
	return entrant{name, func(ctx context.Context) (m measured, err error) {
		return m, c.with(ctx, b.work, "", func(r *running) (err error) {
			if m.rate, err = b.read(filepath.Join(r.point, "object.bin")); err == nil {
				m.cpu, err = r.cpu()
			}
			if err == nil {
				m.memory, err = r.memory()
			}
			return err
		})
	}}
}

// memory is the most memory that the process has had so far (VmHWM), bytes.
func (r *running) memory() (bytes int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	_, err = fmt.Sscanf(line, "%d kB", &bytes)
	return bytes << 10, err
}

// python has a program of Python download the object. Its imports do not count.
func (b *bench) python(name, python, env, program string) entrant {
	return entrant{name, func(ctx context.Context) (m measured, err error) {
		dir, err := os.MkdirTemp(b.work, "c-")
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		cmd := exec.CommandContext(ctx, python, "-c", program+`
import resource, sys, time
cpu, began = time.process_time(), time.perf_counter()
get(sys.argv[1])
print(time.perf_counter() - began, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)`, dir)
		cmd.Env = append(os.Environ(), env, "HF_HUB_DISABLE_XET=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_TELEMETRY=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return m, fmt.Errorf("%s: %w", name, err)
		}
		var seconds, cpu float64
		lines := bufio.NewScanner(strings.NewReader(string(out)))
		for lines.Scan() { // the last one counts
			if _, err = fmt.Sscan(lines.Text(), &seconds, &cpu, &m.memory); err != nil {
				return m, fmt.Errorf("%s prints %q: %w", name, lines.Text(), err)
			}
		}
		m.rate, m.cpu, m.memory = float64(b.size)/seconds, time.Duration(cpu*1e9), m.memory<<10
		return m, nil
	}}
}
