package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const driver = "csi.hbmfs.io"

// pod is one that serves what tests/cluster/pod does.
type pod struct {
	namespace, name string
	ip              string
	asked           time.Time // when the API server was asked to make it
}

type object = map[string]any

// inline is a volume that a pod describes itself.
func inline(attributes map[string]string, secret string) object {
	v := object{"driver": driver, "readOnly": true, "volumeAttributes": attributes}
	if secret != "" {
		v["nodePublishSecretRef"] = object{"name": secret}
	}
	return object{"name": "data", "csi": v}
}

// claimed is a persistent volume of a claim.
func claimed(name string) object {
	return object{"name": "data", "persistentVolumeClaim": object{"claimName": name, "readOnly": true}}
}

// writes is a volume for a pod that writes there: inline or claimed.
func writes(volume object) object {
	for _, kind := range []string{"csi", "persistentVolumeClaim"} {
		if v, ok := volume[kind].(object); ok {
			v["readOnly"] = false
		}
	}
	return volume
}

// isReadOnly tells whether a pod can only read a volume.
func isReadOnly(volume object) bool {
	for _, kind := range []string{"csi", "persistentVolumeClaim"} {
		if v, ok := volume[kind].(object); ok {
			return v["readOnly"] != false
		}
	}
	return true
}

// podObject is a pod of an ordinary user's with one volume, which the Pod Security Standard "restricted" admits.
func podObject(name string, volume object, args ...string) object {
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a
	}
	return object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name},
		"spec": object{
			"restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 2,
			"securityContext": object{"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "seccompProfile": object{"type": "RuntimeDefault"}},
			"containers": []any{object{
				"name": "pod", "image": podImage, "imagePullPolicy": "Never", "args": list,
				"securityContext": object{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": []any{"ALL"}}},
				"volumeMounts":    []any{object{"name": "data", "mountPath": "/data", "readOnly": isReadOnly(volume)}},
			}},
			"volumes": []any{volume},
		},
	}
}

// create asks for a pod that reads the first byte of a file at once.
func (c *cluster) create(t testing.TB, namespace, name string, volume object, file string) *pod {
	t.Helper()
	p := &pod{namespace: namespace, name: name, asked: time.Now()}
	must(t, c.api("POST", "/api/v1/namespaces/"+namespace+"/pods", podObject(name, volume, "serve", file), nil))
	return p
}

// podStatus is what the tests look at.
type podStatus struct {
	Metadata struct{ Name, UID, DeletionTimestamp string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase, PodIP, Reason, Message string
		ContainerStatuses             []struct {
			Name, ContainerID, Image string
			Ready                    bool
			RestartCount             int
			State                    object
		}
	}
}

func (p *pod) path() string { return "/api/v1/namespaces/" + p.namespace + "/pods/" + p.name }

// started waits until a pod answers, and returns what it says of its start.
func (c *cluster) started(t testing.TB, p *pod) answer {
	t.Helper()
	var a answer
	c.await(t, "pod "+p.name+" answers", func() error {
		var s podStatus
		if err := c.api("GET", p.path(), nil, &s); err != nil {
			return err
		}
		if s.Status.Phase == "Failed" || s.Status.PodIP == "" {
			return fmt.Errorf("%s %s %s %v", s.Status.Phase, s.Status.Reason, s.Status.Message, c.events(p))
		}
		p.ip = s.Status.PodIP
		var err error
		a, err = p.try("hello", "")
		return err
	})
	return a
}

// events are what happened to a pod, for people.
func (c *cluster) events(p *pod) (text []string) {
	var list struct {
		Items []struct{ Reason, Message string }
	}
	if err := c.api("GET", "/api/v1/namespaces/"+p.namespace+"/events?fieldSelector="+url.QueryEscape("involvedObject.name="+p.name), nil, &list); err != nil {
		return []string{err.Error()}
	}
	for _, e := range list.Items {
		text = append(text, e.Reason+": "+e.Message)
	}
	return text
}

// answer is what a pod says: see tests/cluster/pod.
type answer struct {
	Error, Wrong, SHA256                        string
	Bytes, Past, First, Passes, Errors, Longest int64
	Facts                                       []string
	Blocks                                      map[string]int64
}

// try asks a pod to do something.
func (p *pod) try(what, file string) (a answer, err error) {
	r, err := client.Get("http://" + p.ip + ":8080/do?what=" + what + "&file=" + url.QueryEscape(file))
	if err != nil {
		return a, err
	}
	defer func() { _ = r.Body.Close() }() // read to its end
	if r.StatusCode != http.StatusOK {
		return a, fmt.Errorf("pod %s: %s", p.name, r.Status)
	}
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, fmt.Errorf("pod %s: %s", p.name, a.Error)
	}
	return a, nil
}

// do is try for what has to work. A wrong byte fails the test at once.
func (p *pod) do(t testing.TB, what, file string) answer {
	t.Helper()
	a, err := p.try(what, file)
	if err != nil {
		t.Fatalf("%s of %s in %s: %v", what, file, p.name, err)
	}
	if a.Wrong != "" {
		t.Fatalf("%s of %s in %s gives wrong bytes: %s", what, file, p.name, a.Wrong)
	}
	return a
}

// remove deletes pods, and waits until there are none of their names.
func (c *cluster) remove(t testing.TB, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		if err := c.api("DELETE", p.path(), nil, nil); err != nil && !isMissing(err) {
			t.Fatal(err)
		}
	}
	for _, p := range pods {
		c.await(t, "pod "+p.name+" is gone", func() error {
			var s podStatus
			if err := c.api("GET", p.path(), nil, &s); isMissing(err) {
				return nil
			} else if err != nil {
				return err
			}
			return fmt.Errorf("it is %s, and is deleted since %s: %v", s.Status.Phase, s.Metadata.DeletionTimestamp, c.events(p))
		})
	}
}

func isMissing(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == http.StatusNotFound
}

// partOf finds the pods of a part of hbmfs that run: host or plugin.
func (c *cluster) partOf(t testing.TB, part string) (found []podStatus) {
	t.Helper()
	var list struct{ Items []podStatus }
	must(t, c.api("GET", "/api/v1/namespaces/hbmfs/pods?labelSelector="+url.QueryEscape("app.kubernetes.io/component="+part), nil, &list))
	return slices.DeleteFunc(list.Items, func(s podStatus) bool { return s.Metadata.DeletionTimestamp != "" })
}

// ready says whether plugin and host run and are ready, each of an image where that is not empty.
func (c *cluster) ready(t testing.TB, image string) error {
	t.Helper()
	for _, part := range []string{"host", "plugin"} {
		found := c.partOf(t, part)
		if len(found) != 1 || len(found[0].Status.ContainerStatuses) == 0 {
			return fmt.Errorf("%d pods of the %s", len(found), part)
		}
		for _, s := range found[0].Status.ContainerStatuses {
			if !s.Ready || s.Name == part && !strings.HasSuffix(s.Image, image) {
				return fmt.Errorf("%s of %s: ready %v, %v, image %s", s.Name, part, s.Ready, s.State, s.Image)
			}
		}
	}
	var n struct {
		Spec struct{ Drivers []struct{ Name string } }
	}
	if err := c.api("GET", "/apis/storage.k8s.io/v1/csinodes/node-1", nil, &n); err != nil {
		return err
	}
	if len(n.Spec.Drivers) != 1 || n.Spec.Drivers[0].Name != driver {
		return fmt.Errorf("kubelet knows the drivers %v", n.Spec.Drivers)
	}
	return nil
}

// clean waits until nothing of hbmfs's volumes is left: no mount, no daemon or keeper, no directory of kubelet's or the host's.
func (c *cluster) clean(t testing.TB) {
	t.Helper()
	var left, last []string
	began := time.Now()
	defer func() { t.Logf("clean after %.1f s; at last %v was left", time.Since(began).Seconds(), last) }()
	if !blackbox.Within(patience, func() bool {
		if left = c.leftovers(); len(left) > 0 {
			last = left
			time.Sleep(200 * time.Millisecond)
		}
		return len(left) == 0
	}) {
		t.Errorf("left although no pod has a volume:\n%s", strings.Join(left, "\n"))
	}
}
